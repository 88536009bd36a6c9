-- What has happened to a topic since a position.
-- ARGV: topic, serial of the last departure that the reader knows, serial of the last session, how many of each at most,
-- remember in ms.
-- Returns {whether to ask again, identity, newest serial, departures, arrivals, the first expiry or ''}; departures and
-- arrivals as they are kept, without the topic.
local topic, most, remember = ARGV[1], tonumber(ARGV[4]), tonumber(ARGV[5])
local now, now_us = now_ms()
local prefix = topic_prefix(topic)
if settle_topic(topic, now, now_us, remember, 50) == 50 then
    return {1}
end
forget(now, 10)
local function after(key, serial)
    local found = redis.call('ZRANGE', key, '[' .. prefix .. struct.pack('>I8', tonumber(serial) + 1), '(' .. prefix .. '\255',
        'BYLEX', 'LIMIT', 0, most)
    for at, member in ipairs(found) do
        found[at] = string.sub(member, #prefix + 1)
    end
    return found
end
local kept = redis.call('HMGET', meta, 'i', 's')
local first = first_expiry(prefix)
return {0, kept[1] or '', kept[2] or '0', after(departed, ARGV[2]), after(listing, ARGV[3]), first and text(first) or ''}
