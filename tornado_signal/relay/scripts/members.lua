-- ARGV: the maximum number of members, or -1 for all.
-- Returns the members and their leases in pairs, then the distinct data of all members and their counts in pairs.
local by_data, total = redis.call('HGETALL', counts), 0
for at = 2, #by_data, 2 do
    total = total + by_data[at]
end
if total ~= redis.call('HLEN', leases) then -- servers of an earlier version do not count
    redis.call('DEL', counts)
    for _, lease in ipairs(redis.call('HVALS', leases)) do
        count(lease, 1)
    end
    redis.call('PEXPIRE', counts, redis.call('PTTL', leases))
    by_data = redis.call('HGETALL', counts)
end
local limit = tonumber(ARGV[1])
if limit < 0 then
    return {redis.call('HGETALL', leases), by_data}
end
local members = limit == 0 and {} or redis.call('HRANDFIELD', leases, limit, 'WITHVALUES')
return {members, by_data}
