-- Move a session's expiry to now and its lifetime.
-- ARGV: code, side (o, a), secret hash, remember in ms.
-- Returns the new expiry, or nil if there is no such session.
local now = now_ms()
local it = admitted(ARGV[2], ARGV[3], now)
if not it then
    return false
end
local expires = now + it.lifetime
if expires ~= it.expires then
    move(it, ARGV[1], expires, tonumber(ARGV[4]))
else
    touch(expires)
end
return text(expires)
