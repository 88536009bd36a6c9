-- Some of a partition's topics, alphabetically, and its counts.
-- Returns {whether to ask again, sessions, topics, time, topic, its sessions, topic, …}.
local now, now_us = now_ms()
if settle(now, now_us, remember_ms, 25) then
    return {1}
end
local found = {0, tonumber(redis.call('HGET', meta, 'n')) or 0, redis.call('ZCARD', topics), text(now)}
if many > 0 then
    for _, topic in ipairs(redis.call('ZRANGE', topics, first, first + many - 1)) do
        found[#found + 1] = topic
        found[#found + 1] = tonumber(redis.call('HGET', meta, '=' .. topic)) or 0
    end
end
return found
