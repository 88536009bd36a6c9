-- Read the changes of a topic since a position.
-- Returns {1, expired sessions} to be called again, or {0, expired sessions, identity, newest serial, removals, refreshes, additions, first expiry or '',
-- serial of the last removal that is no longer stored, the node's history}. Removals, refreshes and additions are members of their sorted sets without the topic.
local now, now_us = now_ms()
local prefix = topic_prefix(topic)
if expire_topic(topic, now, now_us, removals_ms, 50) == 50 then
    return {1, expired}
end
forget_removals(now, 10)
local function after(key, prefix, serial)
    local members = redis.call('ZRANGE', key, '[' .. prefix .. struct.pack('>I8', serial + 1), '(' .. prefix .. '\255',
        'BYLEX', 'LIMIT', 0, max_items)
    for at, member in ipairs(members) do
        members[at] = string.sub(member, #prefix + 1)
    end
    return members
end
local fields = redis.call('HMGET', meta, 'i', 's', 'f')
local first = first_expiry(prefix)
local forgotten = fields[3] or fields[1] and fields[2] or '0' -- a partition of an earlier version does not record it
return {0, expired, fields[1] or '', fields[2] or '0', after(departed, prefix, departed_serial),
    after(departed, refreshes_prefix(topic), departed_serial), after(listing, prefix, listed_serial), first and text(first) or '', forgotten, current_history()}
