-- Move a session's expiry to now and its lifetime.
-- Returns the new expiry, or nil if there is no such session.
local now = now_ms()
local it = admitted(side, secret_hash, now)
if not it then
    return false
end
local expires = now + it.lifetime
if expires ~= it.expires then
    move(it, code, expires, remember_ms)
else
    touch(expires)
end
return text(expires)
