-- ARGV: process, its lifetime in ms, member, owner, token, data, the maximum number of members, whether the process
-- registers the lease again ('1'). Then a lease of another owner is newer, and is kept.
local process, lifetime_ms, member = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local owner, token, data, max_members, again = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8] == '1'
local earlier = redis.call('HGET', leases, member)
-- Return whether a lease that needs one of some tokens can be replaced by one with others.
local function admits(needed, given)
    for each in string.gmatch(needed, '[^,]+') do
        if string.find(',' .. given .. ',', ',' .. each .. ',', 1, true) then
            return true
        end
    end
    return needed == ''
end

if not earlier and redis.call('HLEN', leases) >= max_members then
    return 'full'
end
if earlier then
    local earlier_owner, needed = string.match(earlier, '^%S* (%S*) (%S*) ')
    if (again and earlier_owner ~= owner) or not admits(needed, token) then
        return 'taken'
    end
end
local lease = table.concat({process, owner, token, data}, ' ')
redis.call('HSET', leases, member, lease)
if earlier then
    count(earlier, -1)
end
count(lease, 1)
extend(process, lifetime_ms)
return earlier and 'renewed' or 'new'
