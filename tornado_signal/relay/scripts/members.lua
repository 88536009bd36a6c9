-- ARGV: the maximum number of members, or -1 for all.
-- Returns the members and their leases in pairs, then the distinct data of all members and their counts in pairs.
local counts, pairs_of_counts = {}, {}
for _, lease in ipairs(redis.call('HVALS', leases)) do
    local data = string.match(lease, '^%S* %S* %S* (.*)$')
    counts[data] = (counts[data] or 0) + 1
end
for data, count in pairs(counts) do
    pairs_of_counts[#pairs_of_counts + 1] = data
    pairs_of_counts[#pairs_of_counts + 1] = count
end
local limit = tonumber(ARGV[1])
if limit < 0 then
    return {redis.call('HGETALL', leases), pairs_of_counts}
end
local members = limit == 0 and {} or redis.call('HRANDFIELD', leases, limit, 'WITHVALUES')
return {members, pairs_of_counts}
