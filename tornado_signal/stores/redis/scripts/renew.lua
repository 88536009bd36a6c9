-- Refresh an offer that has a lease.
-- ARGV: code, lease, remember in ms.
-- Returns the new expiry, or nil if there is no such offer.
local now = now_ms()
local it = find('l')
local leases = it and it.more or ''
if #without(leases, ARGV[2]) == #leases or it.expires <= now or it.answered > 0 then
    return false
end
local expires = now + it.lifetime
move(it, ARGV[1], expires, tonumber(ARGV[3]))
return text(expires)
