-- Take a lease of an offer instead of all others, and refresh it.
-- ARGV: code, secret hash, lease, the lifetime that a held offer has at least, remember in ms.
-- Returns the new expiry, or nil if there is no such session.
local now = now_ms()
local it = admitted('o', ARGV[2], now)
if not it then
    return false
end
if it.answered == 0 then
    prolong(it, tonumber(ARGV[4]))
    redis.call('HSET', session, 'l', ARGV[3])
end
local expires = now + it.lifetime
move(it, ARGV[1], expires, tonumber(ARGV[5]))
return text(expires)
