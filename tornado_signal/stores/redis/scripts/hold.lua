-- Take a lease of an offer instead of all others, and refresh it.
-- Returns the new expiry, or nil if there is no such session.
local now = now_ms()
local it = admitted('o', secret_hash, now)
if not it then
    return false
end
if it.answered == 0 then
    prolong(it)
    redis.call('HSET', session, 'l', lease)
end
local expires = now + it.lifetime
move(it, code, expires, remember_ms)
return text(expires)
