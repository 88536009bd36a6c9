-- Withdraw a session.
-- Returns {'withdrawn', topic, creation, expiry}, {'kept'} (done by this call, whose reply was lost) or {'not found'}.
local now, now_us = now_ms()
local it = admitted(side, secret_hash, now)
if not it then
    if redis.call('GET', tomb) ~= token then
        return {'not found'}
    end
    redis.call('PEXPIRE', tomb, 10000)
    return {'kept'}
end
withdraw(it, code, token, now, now_us, removals_ms)
return {'withdrawn', it.topic, text(it.created), text(it.expires)}
