-- Set a session's expiry to now plus its lifetime.
-- Returns the new expiry, or nil if there is no such session.
local now = now_ms()
local it = admitted(side, secret_hash, now)
if not it then
    return false
end
local expires = now + it.lifetime
if expires ~= it.expires then
    set_expiry(it, code, expires, remember_ms)
else
    write_expiry(expires)
end
return text(expires)
