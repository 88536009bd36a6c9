-- Publish an offer.
-- ARGV: code, topic, head (what is fixed, without times and serial), offer, lifetime in ms, remember in ms, secret hash,
-- sessions of a topic, sessions and topics of this partition that there may be, identity for a new partition, by content,
-- lease (empty for none), the lifetime that a held offer has at least, how many leases it may have.
-- Returns {state, expiry, sessions, topics}; states: created, kept, 'not found', 'full topic', 'full', 'full topics', 'again'.
local code, topic, fixed, offer = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local lifetime, remember, secret = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local in_topic, in_partition, topics_here = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local now, now_us = now_ms()

local lease, expires = ARGV[13], 0

local function answer(state, sessions)
    return {state, text(expires), sessions or tonumber(redis.call('HGET', meta, 'n')) or 0, redis.call('ZCARD', topics)}
end

local it = find()
if it and it.expires > now then
    if ARGV[12] == '0' then -- it was made by this very call, whose answer was lost
        touch(it.expires)
        expires = it.expires
        return answer('created')
    end
    if it.o_secret ~= '' and it.o_secret ~= secret then
        return answer('not found')
    end
    expires = it.expires
    if it.answered > 0 then
        touch(expires)
    else
        if lease ~= '' then
            prolong(it, tonumber(ARGV[14]))
            local leases = without(redis.call('HGET', session, 'l') or '', lease) .. lease
            redis.call('HSET', session, 'l', string.sub(leases, -LEASE * tonumber(ARGV[15])))
        end
        expires = now + it.lifetime
        move(it, code, expires, remember)
    end
    return answer('kept')
end
if ARGV[12] == '0' and redis.call('EXISTS', tomb) == 1 then -- and withdrawn since
    return answer('created')
end
forget(now, 4)
if settle_topic(topic, now, now_us, remember, 50) == 50 then
    return answer('again')
end
settle(now, now_us, remember, 2)
local kept = redis.call('HMGET', meta, 's', 'c', 'x', 'n', '=' .. topic, 'i')
local here, listed = tonumber(kept[4]) or 0, tonumber(kept[5]) or 0
if here >= in_partition then
    return answer(settle(now, now_us, remember, 50) and 'again' or 'full')
elseif listed >= in_topic then
    return answer('full topic')
elseif listed == 0 and redis.call('ZCARD', topics) >= topics_here then
    return answer(settle(now, now_us, remember, 50) and 'again' or 'full topics')
end
local created, serial = math.max(now, tonumber(kept[2]) or 0), next_serial(math.max(kept[1] or 0, began(now_us)), now_us)
if lease ~= '' then
    lifetime = math.max(lifetime, tonumber(ARGV[14]))
end
expires = created + lifetime
redis.call('HSET', meta, 's', text(serial), 'c', text(created), 'n', here + 1, '=' .. topic, listed + 1,
    'i', kept[6] or ARGV[11])
keep(expires, remember, kept[3])
if it then
    redis.call('DEL', session)
end
redis.call('HSET', session, 'h', struct.pack('>I8I8I8', created, lifetime, serial) .. fixed, 'o', offer, 'e', text(expires))
if lease ~= '' then
    redis.call('HSET', session, 'l', lease)
end
expire(expires, lifetime)
local prefix, name = topic_prefix(topic), struct.pack('>I8', serial) .. code
redis.call('ZADD', listing, 0, prefix .. name)
redis.call('ZADD', expiries, 0, prefix .. struct.pack('>I8', expires) .. name)
redis.call('ZADD', topics, 0, topic)
redis.call('ZADD', due, 'LT', text(expires), topic)
if here == 0 then
    renew(4, 7)
end
redis.call('SPUBLISH', topic_channel(topic), '')
if ARGV[12] == '1' then -- else its code is known to nobody yet
    redis.call('SPUBLISH', session, '')
end
return answer('created', here + 1)
