-- Give leases of an offer back. It is withdrawn with the last one.
-- ARGV: code, a lease or the identifier of a process, token of this call, remember in ms.
-- Returns 'withdrawn', 'released', 'kept' (by this very call, whose answer was lost), 'not found'.
local now, now_us = now_ms()
local it = find('l')
local leases = it and it.more or ''
local rest = without(leases, ARGV[2])
if #rest == #leases or it.expires <= now or it.answered > 0 then
    return redis.call('GET', tomb) == ARGV[3] and 'kept' or 'not found'
end
if rest == '' then
    withdraw(it, ARGV[1], ARGV[3], now, now_us, tonumber(ARGV[4]))
    return 'withdrawn'
end
redis.call('HSET', session, 'l', rest)
return 'released'
