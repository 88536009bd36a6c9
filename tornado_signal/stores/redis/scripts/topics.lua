-- Read the counts of a partition, and some of its topics in alphabetical order. The arguments after `remember_ms` are the
-- ranges of the topics, in order: of each the first possible name, and a bound above the last one.
-- Returns {1, expired sessions} to be called again, or {0, expired sessions, sessions, topics in the ranges, topic, its sessions, topic, …}.
local now, now_us = now_ms()
if expire_due(now, now_us, remember_ms, 25) then
    return {1, expired}
end
local reply = {0, expired, tonumber(redis.call('HGET', meta, 'n')) or 0, 0}
local single = {} -- the fields with the counts of ranges of one topic
for at = ARGUMENTS + 1, #ARGV - 1, 2 do
    if ARGV[at + 1] == ARGV[at] .. '\0' then
        single[#single + 1] = '=' .. ARGV[at]
    end
end
local counts = single[1] and redis.call('HMGET', meta, unpack(single)) or {}

local total, singles = 0, 0
for at = ARGUMENTS + 1, #ARGV - 1, 2 do
    local start, stop = ARGV[at], ARGV[at + 1]
    local skipped, missing, found = math.max(0, first - total), many - (#reply - 4) / 2, nil
    if stop == start .. '\0' then
        singles = singles + 1
        found = counts[singles] and 1 or 0
        if skipped < found and missing > 0 then
            reply[#reply + 1], reply[#reply + 2] = start, tonumber(counts[singles])
        end
    else
        found = redis.call('ZLEXCOUNT', topics, '[' .. start, '(' .. stop)
        if skipped < found and missing > 0 then
            local rank = redis.call('ZLEXCOUNT', topics, '-', '(' .. start)
            for _, topic in ipairs(redis.call('ZRANGE', topics, rank + skipped, rank + math.min(skipped + missing, found) - 1)) do
                reply[#reply + 1], reply[#reply + 2] = topic, tonumber(redis.call('HGET', meta, '=' .. topic)) or 0
            end
        end
    end
    total = total + found
end
reply[4] = total
return reply
