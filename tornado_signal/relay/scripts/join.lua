-- ARGV: process, its lifetime in ms, member, owner, token, data, the maximum number of members.
local process, lifetime_ms, member = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local owner, token, data, max_members = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
local earlier = redis.call('HGET', leases, member)
if not earlier and redis.call('HLEN', leases) >= max_members then
    return 'full'
end
if earlier then
    local needed = string.match(earlier, '^%S* %S* (%S*) ')
    if needed ~= '' and needed ~= token then
        return 'taken'
    end
end
redis.call('HSET', leases, member, table.concat({process, owner, token, data}, ' '))
extend(process, lifetime_ms)
return earlier and 'renewed' or 'new'
