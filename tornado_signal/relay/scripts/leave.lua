-- ARGV: member, owner.
local lease = redis.call('HGET', leases, ARGV[1])
if lease and string.match(lease, '^%S* (%S*) ') == ARGV[2] then
    redis.call('HDEL', leases, ARGV[1])
    count(lease, -1)
end
return 0
