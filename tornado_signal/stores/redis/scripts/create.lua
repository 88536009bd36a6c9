-- Publish an offer.
-- Returns {state, expiry, sessions, expired sessions}. States: 'created', 'kept' (the same content was published before), 'not found',
-- 'full', 'again'.
local now, now_us = now_ms()

local expires = 0

local function reply(state, sessions)
    return {state, text(expires), sessions or tonumber(redis.call('HGET', meta, 'n')) or 0, expired}
end

local it = find()
if it and it.expires > now then
    if by_content == 0 then -- created by this call, whose reply was lost
        write_expiry(it.expires)
        expires = it.expires
        return reply('created')
    end
    if it.o_secret ~= '' and it.o_secret ~= secret_hash then
        return reply('not found')
    end
    expires = it.expires
    if it.answered > 0 then
        write_expiry(expires)
    else
        if lease ~= '' then
            raise_lifetime(it)
            local leases = without_leases(redis.call('HGET', session, 'l') or '', lease) .. lease
            redis.call('HSET', session, 'l', string.sub(leases, -LEASE_BYTES * MAX_LEASES))
        end
        expires = now + it.lifetime
        set_expiry(it, code, expires, removals_ms, now_us)
    end
    return reply('kept')
end
if by_content == 0 and redis.call('EXISTS', tomb) == 1 then -- created by this call and withdrawn since
    return reply('created')
end
forget_removals(now, 4)
if expire_topic(topic, now, now_us, removals_ms, 50) == 50 then
    return reply('again')
end
expire_due(now, now_us, removals_ms, 2)
local fields = redis.call('HMGET', meta, 's', 'c', 'x', 'n', '=' .. topic, 'i')
local sessions_here, sessions_in_topic = tonumber(fields[4]) or 0, tonumber(fields[5]) or 0
if sessions_here >= max_sessions then
    return reply(expire_due(now, now_us, removals_ms, 50) and 'again' or 'full')
end
local created, serial = math.max(now, tonumber(fields[2]) or 0), next_serial(math.max(fields[1] or 0, history_start(now_us)), now_us)
if lease ~= '' then
    lifetime_ms = math.max(lifetime_ms, MIN_HELD_MS)
end
expires = created + lifetime_ms
redis.call('HSET', meta, 's', text(serial), 'c', text(created), 'n', sessions_here + 1, '=' .. topic, sessions_in_topic + 1,
    'i', fields[6] or identity)
if not fields[6] then
    redis.call('HSET', meta, 'f', '0')
end
extend_partition(expires, removals_ms, fields[3])
if it then
    redis.call('DEL', session)
end
redis.call('HSET', session, 'h', struct.pack('>I8I8I8', created, lifetime_ms, serial) .. head, 'o', offer, 'e', text(expires))
if lease ~= '' then
    redis.call('HSET', session, 'l', lease)
end
expire_key(expires, lifetime_ms)
local prefix, name = topic_prefix(topic), struct.pack('>I8', serial) .. code
redis.call('ZADD', listing, 0, prefix .. name)
redis.call('ZADD', expiries, 0, prefix .. struct.pack('>I8', expires) .. name)
redis.call('ZADD', topics, 0, topic)
redis.call('ZADD', due, 'LT', text(expires), topic)
if sessions_here == 0 then
    extend_keys(4, 7)
end
redis.call('SPUBLISH', topic_channel(topic), '')
if by_content == 1 then -- a random code is not known to anybody yet
    redis.call('SPUBLISH', session, '')
end
return reply('created', sessions_here + 1)
