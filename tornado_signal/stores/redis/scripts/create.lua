-- Publish an offer.
-- Returns {state, expiry, sessions, topics}; states: created, kept, 'not found', 'full topic', 'full', 'full topics', 'again'.
local now, now_us = now_ms()

local expires = 0

local function answer(state, sessions)
    return {state, text(expires), sessions or tonumber(redis.call('HGET', meta, 'n')) or 0, redis.call('ZCARD', topics)}
end

local it = find()
if it and it.expires > now then
    if by_content == 0 then -- it was made by this very call, whose answer was lost
        touch(it.expires)
        expires = it.expires
        return answer('created')
    end
    if it.o_secret ~= '' and it.o_secret ~= secret_hash then
        return answer('not found')
    end
    expires = it.expires
    if it.answered > 0 then
        touch(expires)
    else
        if lease ~= '' then
            prolong(it)
            local leases = without(redis.call('HGET', session, 'l') or '', lease) .. lease
            redis.call('HSET', session, 'l', string.sub(leases, -LEASE_BYTES * MAX_LEASES))
        end
        expires = now + it.lifetime
        move(it, code, expires, remember_ms)
    end
    return answer('kept')
end
if by_content == 0 and redis.call('EXISTS', tomb) == 1 then -- and withdrawn since
    return answer('created')
end
forget(now, 4)
if settle_topic(topic, now, now_us, remember_ms, 50) == 50 then
    return answer('again')
end
settle(now, now_us, remember_ms, 2)
local kept = redis.call('HMGET', meta, 's', 'c', 'x', 'n', '=' .. topic, 'i')
local here, listed = tonumber(kept[4]) or 0, tonumber(kept[5]) or 0
if here >= max_sessions then
    return answer(settle(now, now_us, remember_ms, 50) and 'again' or 'full')
elseif listed >= max_in_topic then
    return answer('full topic')
elseif listed == 0 and redis.call('ZCARD', topics) >= max_topics then
    return answer(settle(now, now_us, remember_ms, 50) and 'again' or 'full topics')
end
local created, serial = math.max(now, tonumber(kept[2]) or 0), next_serial(math.max(kept[1] or 0, began(now_us)), now_us)
if lease ~= '' then
    lifetime_ms = math.max(lifetime_ms, MIN_HELD_MS)
end
expires = created + lifetime_ms
redis.call('HSET', meta, 's', text(serial), 'c', text(created), 'n', here + 1, '=' .. topic, listed + 1,
    'i', kept[6] or identity)
keep(expires, remember_ms, kept[3])
if it then
    redis.call('DEL', session)
end
redis.call('HSET', session, 'h', struct.pack('>I8I8I8', created, lifetime_ms, serial) .. head, 'o', offer, 'e', text(expires))
if lease ~= '' then
    redis.call('HSET', session, 'l', lease)
end
expire(expires, lifetime_ms)
local prefix, name = topic_prefix(topic), struct.pack('>I8', serial) .. code
redis.call('ZADD', listing, 0, prefix .. name)
redis.call('ZADD', expiries, 0, prefix .. struct.pack('>I8', expires) .. name)
redis.call('ZADD', topics, 0, topic)
redis.call('ZADD', due, 'LT', text(expires), topic)
if here == 0 then
    renew(4, 7)
end
redis.call('SPUBLISH', topic_channel(topic), '')
if by_content == 1 then -- else its code is known to nobody yet
    redis.call('SPUBLISH', session, '')
end
return answer('created', here + 1)
