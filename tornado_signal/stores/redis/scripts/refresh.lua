-- Set a session's expiry to now plus its lifetime.
-- Returns {new expiry, size of the offerer's messages if it is announced or 0}, or nil if there is no such session.
local now, now_us = now_ms()
local it = admitted(side, secret_hash, now)
if not it then
    return false
end
local expires, announced = now + it.lifetime, false
if expires ~= it.expires then
    announced = set_expiry(it, code, expires, removals_ms, announce == 1 and now_us)
else
    write_expiry(expires)
end
return {text(expires), announced and it.o[2] or 0}
