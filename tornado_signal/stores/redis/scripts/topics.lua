-- Read the counts of a partition, and the first of its topics in alphabetical order. The arguments after `removals_ms` are the
-- ranges of the topics, in order: of each the first possible name, and a bound above the last one.
-- Returns {1, expired sessions} to be called again, or {0, expired sessions, sessions, topics in the ranges, topic, its sessions, topic, …}.
local now, now_us = now_ms()
if expire_due(now, now_us, removals_ms, 25) then
    return {1, expired}
end
local reply = {0, expired, tonumber(redis.call('HGET', meta, 'n')) or 0, 0}
for at = ARGUMENTS + 1, #ARGV - 1, 2 do
    local first, stop = '[' .. ARGV[at], '(' .. ARGV[at + 1]
    local found, missing = redis.call('ZLEXCOUNT', topics, first, stop), many - (#reply - 4) / 2
    if found > 0 and missing > 0 then
        for _, topic in ipairs(redis.call('ZRANGE', topics, first, stop, 'BYLEX', 'LIMIT', 0, missing)) do
            reply[#reply + 1], reply[#reply + 2] = topic, tonumber(redis.call('HGET', meta, '=' .. topic)) or 0
        end
    end
    reply[4] = reply[4] + found
end
return reply
