-- Read the counts of a partition, and some of its topics in alphabetical order.
-- Returns {1, expired sessions} to be called again, or {0, expired sessions, sessions, topics, time, topic, its sessions, topic, …}.
local now, now_us = now_ms()
if expire_due(now, now_us, remember_ms, 25) then
    return {1, expired}
end
local reply = {0, expired, tonumber(redis.call('HGET', meta, 'n')) or 0, redis.call('ZCARD', topics), text(now)}
if many > 0 then
    for _, topic in ipairs(redis.call('ZRANGE', topics, first, first + many - 1)) do
        reply[#reply + 1] = topic
        reply[#reply + 1] = tonumber(redis.call('HGET', meta, '=' .. topic)) or 0
    end
end
return reply
