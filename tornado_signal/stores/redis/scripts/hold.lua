-- Replace all leases of an offer by this one, and refresh it.
-- Returns {new expiry}, or nil if there is no such session.
local now = now_ms()
local it = admitted('o', secret_hash, now)
if not it then
    return false
end
if it.answered == 0 then
    raise_lifetime(it)
    redis.call('HSET', session, 'l', lease)
end
local expires = now + it.lifetime
set_expiry(it, code, expires, removals_ms)
return {text(expires)}
