-- ARGV: process, its lifetime in ms. Returns whether the group still has leases of the process.
if not redis.call('ZSCORE', processes, ARGV[1]) then
    return 0
end
extend(ARGV[1], tonumber(ARGV[2]))
return 1
