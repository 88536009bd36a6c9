-- What has happened to a topic since a position.
-- Returns {whether to ask again, identity, newest serial, departures, arrivals, the first expiry or ''}; departures and
-- arrivals as they are kept, without the topic.
local now, now_us = now_ms()
local prefix = topic_prefix(topic)
if settle_topic(topic, now, now_us, remember_ms, 50) == 50 then
    return {1}
end
forget(now, 10)
local function after(key, serial)
    local found = redis.call('ZRANGE', key, '[' .. prefix .. struct.pack('>I8', serial + 1), '(' .. prefix .. '\255',
        'BYLEX', 'LIMIT', 0, most)
    for at, member in ipairs(found) do
        found[at] = string.sub(member, #prefix + 1)
    end
    return found
end
local kept = redis.call('HMGET', meta, 'i', 's')
local first = first_expiry(prefix)
return {0, kept[1] or '', kept[2] or '0', after(departed, departed_serial), after(listing, listed_serial), first and text(first) or ''}
