-- End a session.
-- ARGV: code, side (o, a), secret hash, token of this call, remember in ms.
-- Returns 'withdrawn', 'kept' (by this very call, whose answer was lost), 'not found'.
local code, remember = ARGV[1], tonumber(ARGV[5])
local now, now_us = now_ms()
local it = admitted(ARGV[2], ARGV[3], now)
if not it then
    if redis.call('GET', tomb) ~= ARGV[4] then
        return 'not found'
    end
    redis.call('PEXPIRE', tomb, 10000)
    return 'kept'
end
redis.call('DEL', session)
redis.call('SET', tomb, ARGV[4], 'PX', 10000)
if it.answered == 0 then
    local prefix = topic_prefix(it.topic)
    local left = leave(it.topic, prefix, it.serial, it.expires, code, 3, now, now_us, remember)
    if left then
        note_topic(it.topic, prefix, left)
    end
    keep(it.expires, remember)
end
redis.call('SPUBLISH', session, '')
return 'withdrawn'
