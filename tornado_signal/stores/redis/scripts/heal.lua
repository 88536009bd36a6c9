-- Remove a missing session from its listing. Only a bug or an eviction can cause this.
-- Returns the expired sessions.
if redis.call('EXISTS', session) == 1 then
    return expired
end
local now, now_us = now_ms()
local prefix = topic_prefix(topic)
local name = struct.pack('>I8', serial) .. code
local members = redis.call('ZRANGE', expiries, '[' .. prefix, '(' .. prefix .. '\255', 'BYLEX')
for _, member in ipairs(members) do
    if string.sub(member, #prefix + 9) == name then
        delist(topic, prefix, serial, struct.unpack('>I8', member, #prefix + 1), code, EXPIRED, now, now_us, remember_ms)
        note_topic(topic, prefix)
        return expired
    end
end
return expired
