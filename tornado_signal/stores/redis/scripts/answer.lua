-- Answer a session.
-- ARGV: code, answer, secret hash, remember in ms.
-- Returns {state, how long the offer waited in ms}; states: 'answered', 'kept', 'not found', 'other'.
local code, answer, secret, remember = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local now, now_us = now_ms()
local it = admitted('a', secret, now)
if not it then
    return {'not found', 0}
end
if it.answered > 0 then
    if redis.call('HGET', session, 'a') ~= answer then
        return {'other', 0}
    end
    touch(it.expires)
    return {'kept', 0}
end
skip_lost_numbers(it, now_us)
it.a = {it.a[1] + 1, it.a[2] + #answer}
it.answered, it.a_secret = it.a[1], secret
keep_sent(it, {'a', answer})
local prefix = topic_prefix(it.topic)
local left = leave(it.topic, prefix, it.serial, it.expires, code, 1, now, now_us, remember)
if left then
    note_topic(it.topic, prefix, left)
end
keep(it.expires, remember)
redis.call('SPUBLISH', session, '')
return {'answered', now - it.created}
