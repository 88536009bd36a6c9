-- KEYS: the members of a group with their leases, the processes of these leases with their expiries, and the numbers of
-- members by their data. A lease is the process, the owner, the token and the data, separated by spaces.
local leases, processes, counts = KEYS[1], KEYS[2], KEYS[3]
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

-- Change the number of members with the data of a lease.
local function count(lease, change)
    local data = string.match(lease, '^%S* %S* %S* (.*)$')
    if redis.call('HINCRBY', counts, data, change) <= 0 then
        redis.call('HDEL', counts, data)
    end
end

-- Remove the leases of processes that have expired.
local late = redis.call('ZRANGEBYSCORE', processes, '-inf', now_ms)
if #late > 0 then
    local expired = {}
    for _, process in ipairs(late) do
        expired[process] = true
    end
    local all = redis.call('HGETALL', leases)
    for at = 1, #all, 2 do
        if expired[string.match(all[at + 1], '^%S+')] then
            redis.call('HDEL', leases, all[at])
            count(all[at + 1], -1)
        end
    end
    redis.call('ZREMRANGEBYSCORE', processes, '-inf', now_ms)
end

-- Let a process keep its leases for some time.
local function extend(process, lifetime_ms)
    redis.call('ZADD', processes, now_ms + lifetime_ms, process)
    for _, key in ipairs(KEYS) do
        if redis.call('PTTL', key) < lifetime_ms then
            redis.call('PEXPIRE', key, lifetime_ms)
        end
    end
end
