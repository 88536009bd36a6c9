-- ARGV: process, its lifetime in ms. Returns the number of members, or 0 if the group has lost the process.
if not redis.call('ZSCORE', processes, ARGV[1]) then
    return 0
end
extend(ARGV[1], tonumber(ARGV[2]))
return redis.call('HLEN', leases)
