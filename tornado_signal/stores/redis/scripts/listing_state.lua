-- Read the current state of a topic's listing.
-- Returns {1, expired sessions} to be called again, or {0, expired sessions, identity, newest serial, number of sessions, first expiry or ''}.
local now, now_us = now_ms()
local prefix = topic_prefix(topic)
if expire_topic(topic, now, now_us, removals_ms, 50) == 50 then
    return {1, expired}
end
local newest = redis.call('ZRANGE', listing, '(' .. prefix .. '\255', '[' .. prefix, 'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
local fields = redis.call('HMGET', meta, 'i', '=' .. topic)
local first = first_expiry(prefix)
return {0, expired, fields[1] or '', newest and text(struct.unpack('>I8', newest, #prefix + 1)) or '0', tonumber(fields[2]) or 0,
    first and text(first) or ''}
