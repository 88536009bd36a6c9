-- Answer a session.
-- Returns {state, milliseconds between offer and answer}. States: 'answered', 'kept' (a retry), 'not found', 'other'.
local now, now_us = now_ms()
local it = admitted('a', secret_hash, now)
if not it then
    return {'not found', 0}
end
if it.answered > 0 then
    if redis.call('HGET', session, 'a') ~= answer then
        return {'other', 0}
    end
    write_expiry(it.expires)
    return {'kept', 0}
end
skip_lost_numbers(it, now_us)
it.a = {it.a[1] + 1, it.a[2] + #answer}
it.answered, it.a_secret = it.a[1], secret_hash
keep_sent(it, {'a', answer})
local prefix = topic_prefix(it.topic)
local left = delist(it.topic, prefix, it.serial, it.expires, code, ANSWERED, now, now_us, remember_ms)
if left then
    note_topic(it.topic, prefix, left)
end
extend_partition(it.expires, remember_ms)
redis.call('SPUBLISH', session, '')
return {'answered', now - it.created}
