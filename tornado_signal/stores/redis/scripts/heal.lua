-- Remove a missing session from its listing. Its expiry is unknown, so its entry is searched among those of the topic.
-- Returns {where to search next, or '', expired sessions}.
if redis.call('EXISTS', session) == 1 then
    return {'', expired}
end
local now, now_us = now_ms()
local prefix = topic_prefix(topic)
local name = struct.pack('>I8', serial) .. code
local members = redis.call('ZRANGE', expiries, '(' .. start, '(' .. prefix .. '\255', 'BYLEX', 'LIMIT', 0, max_items)
for _, member in ipairs(members) do
    if string.sub(member, #prefix + 9) == name then
        delist(topic, prefix, serial, struct.unpack('>I8', member, #prefix + 1), code, EXPIRED, now, now_us, remember_ms)
        note_topic(topic, prefix)
        return {'', expired}
    end
end
return {#members == max_items and members[#members] or '', expired}
