-- End a session.
-- ARGV: code, side (o, a), secret hash, token of this call, remember in ms.
-- Returns 'withdrawn', 'kept' (by this very call, whose answer was lost), 'not found'.
local now, now_us = now_ms()
local it = admitted(ARGV[2], ARGV[3], now)
if not it then
    if redis.call('GET', tomb) ~= ARGV[4] then
        return 'not found'
    end
    redis.call('PEXPIRE', tomb, 10000)
    return 'kept'
end
withdraw(it, ARGV[1], ARGV[4], now, now_us, tonumber(ARGV[5]))
return 'withdrawn'
