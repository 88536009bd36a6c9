-- Refresh an offer that has a lease.
-- Returns {new expiry}, or nil if there is no such offer.
local now = now_ms()
local it = find('l')
local leases = it and it.more or ''
if #without_leases(leases, lease) == #leases or it.expires <= now or it.answered > 0 then
    return false
end
local expires = now + it.lifetime
set_expiry(it, code, expires, removals_ms)
return {text(expires)}
