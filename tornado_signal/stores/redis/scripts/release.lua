-- Release leases of an offer. Releasing the last one withdraws it.
-- Returns {'withdrawn', topic, creation, expiry}, {'released'}, {'kept'} (withdrawn by this call, whose reply was lost) or
-- {'not found'}.
local now, now_us = now_ms()
local it = find('l')
local leases = it and it.more or ''
local rest = without_leases(leases, lease)
if #rest == #leases or it.expires <= now or it.answered > 0 then
    return {redis.call('GET', tomb) == token and 'kept' or 'not found'}
end
if rest == '' then
    withdraw(it, code, token, now, now_us, removals_ms)
    return {'withdrawn', it.topic, text(it.created), text(it.expires)}
end
redis.call('HSET', session, 'l', rest)
return {'released'}
