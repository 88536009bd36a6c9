-- A topic's listing now.
-- Returns {whether to ask again, identity, serial of the newest, how many, the first expiry or ''}.
local now, now_us = now_ms()
local prefix = topic_prefix(topic)
if settle_topic(topic, now, now_us, remember_ms, 50) == 50 then
    return {1}
end
local newest = redis.call('ZRANGE', listing, '(' .. prefix .. '\255', '[' .. prefix, 'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
local kept = redis.call('HMGET', meta, 'i', '=' .. topic)
local first = first_expiry(prefix)
return {0, kept[1] or '', newest and text(struct.unpack('>I8', newest, #prefix + 1)) or '0', tonumber(kept[2]) or 0,
    first and text(first) or ''}
