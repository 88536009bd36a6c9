-- Give leases of an offer back. It is withdrawn with the last one.
-- Returns 'withdrawn', 'released', 'kept' (by this very call, whose answer was lost), 'not found'.
local now, now_us = now_ms()
local it = find('l')
local leases = it and it.more or ''
local rest = without(leases, lease)
if #rest == #leases or it.expires <= now or it.answered > 0 then
    return redis.call('GET', tomb) == token and 'kept' or 'not found'
end
if rest == '' then
    withdraw(it, code, token, now, now_us, remember_ms)
    return 'withdrawn'
end
redis.call('HSET', session, 'l', rest)
return 'released'
