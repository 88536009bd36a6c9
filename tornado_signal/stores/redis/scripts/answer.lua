-- Answer a session.
-- Returns {'answered', milliseconds between offer and answer, topic, creation, expiry}, {'kept'} (another call has done it),
-- {'not found'} or {'other'}.
local now, now_us = now_ms()
local it = admitted('a', secret_hash, now)
if not it then
    return {'not found'}
end

local function answered()
    return {'answered', now - it.created, it.topic, text(it.created), text(it.expires)}
end

if it.answered > 0 then
    if redis.call('HGET', session, 'a') ~= answer then
        return {'other'}
    end
    write_expiry(it.expires)
    return done_before(it, token) and answered() or {'kept'}
end
skip_lost_numbers(it, now_us)
it.a = {it.a[1] + 1, it.a[2] + #answer}
it.answered, it.a_secret, it.tokens = it.a[1], secret_hash, it.tokens .. token
keep_sent(it, {'a', answer})
local prefix = topic_prefix(it.topic)
local left = delist(it.topic, prefix, it.serial, it.expires, code, ANSWERED, now, now_us, removals_ms)
if left then
    note_topic(it.topic, prefix, left)
end
extend_partition(it.expires, removals_ms)
redis.call('SPUBLISH', session, '')
return answered()
