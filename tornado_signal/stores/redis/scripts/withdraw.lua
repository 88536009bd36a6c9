-- End a session.
-- ARGV: code, side (o, a), secret hash, token of this call, remember in ms, the expiry of a session that is
-- withdrawn only if it is listed and still expires then, or 0.
-- Returns 'withdrawn', 'kept' (by this very call, whose answer was lost), 'not found'.
local code, remember, expires = ARGV[1], tonumber(ARGV[5]), tonumber(ARGV[6])
local now, now_us = now_ms()
local it = admitted(ARGV[2], ARGV[3], now)
if not it then
    if redis.call('GET', tomb) ~= ARGV[4] then
        return 'not found'
    end
    redis.call('PEXPIRE', tomb, 10000)
    return 'kept'
end
if expires ~= 0 and (it.answered ~= 0 or it.expires ~= expires) then
    return 'not found'
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
