-- What the scripts share. `scripts.py` puts constants and keys before it, and the arguments of a script after it.
-- Every script declares all keys of its partition that it may touch: one that finds others in the middle of a slot's
-- migration would stop halfway.
local known_history = table.remove(ARGV) -- the last argument: the history that the node has named lately, or ''
local SKIP = 256 -- more than a side sends while a primary that is going to be replaced acknowledges nothing

local function now_ms()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000), time[1] * 1000000 + time[2]
end

-- Numbers are printed whole: Lua's own format has 14 digits.
local function text(number)
    return string.format('%.0f', number)
end

local function topic_prefix(topic)
    return struct.pack('>I2', #topic) .. topic
end

-- Serials only ever advance, also over a failover that lost the latest: none is below the time, in microseconds.
local function next_serial(latest, now_us)
    return math.max((tonumber(latest) or 0) + 1, now_us)
end

local function topic_channel(topic)
    return string.sub(meta, 1, -2) .. 't:' .. topic
end

local function first_expiry(prefix)
    local first = redis.call('ZRANGE', expiries, '[' .. prefix, '(' .. prefix .. '\255', 'BYLEX', 'LIMIT', 0, 1)[1]
    return first and struct.unpack('>I8', first, #prefix + 1)
end

-- Note when something of a topic expires next; without anything there is no such topic. `left` is how many there are, if
-- that is known.
local function note_topic(topic, prefix, left)
    local first = left ~= 0 and first_expiry(prefix)
    if first then
        redis.call('ZADD', due, text(first), topic)
    else
        redis.call('ZREM', due, topic)
        redis.call('ZREM', topics, topic)
        redis.call('HDEL', meta, '=' .. topic)
    end
end

-- The keys of a partition live a while longer than all that is in them.
local function renew(first, last)
    local until_ms = redis.call('HGET', meta, 'x') or text(now_ms() + 86400000)
    for at = first, last do
        redis.call('PEXPIREAT', KEYS[at], until_ms)
    end
end

local function keep(expires, remember, until_ms)
    if (tonumber(until_ms or redis.call('HGET', meta, 'x')) or 0) < expires + remember then
        redis.call('HSET', meta, 'x', text(expires + 2 * remember))
        renew(3, 9)
    end
end

-- The serial with which the history of this node began: another primary, or the same after a restart, has another one.
local function began(now_us)
    local kept = redis.call('HMGET', meta, 'r', 'b', 's')
    if kept[1] == known_history then -- INFO costs more than the rest of a small script
        return tonumber(kept[2])
    end
    local history = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
    if kept[1] ~= history then
        kept[2] = text(next_serial(kept[3], now_us))
        redis.call('HSET', meta, 'r', history, 'b', kept[2], 's', kept[2])
    end
    return tonumber(kept[2])
end

-- A session leaves its topic's listing, if it is there; note_topic has to follow. Returns how many are left, or nil.
local function leave(topic, prefix, serial, expires, code, reason, now, now_us, remember)
    local name = struct.pack('>I8', serial) .. code
    if redis.call('ZREM', listing, prefix .. name) == 0 then
        return nil
    end
    redis.call('ZREM', expiries, prefix .. struct.pack('>I8', expires) .. name)
    local kept = redis.call('HMGET', meta, 's', 'n', '=' .. topic)
    local departure, left = next_serial(kept[1], now_us), (kept[3] or 1) - 1
    redis.call('HSET', meta, 's', text(departure), 'n', (kept[2] or 1) - 1, '=' .. topic, left)
    local member = prefix .. struct.pack('>I8I8I1', departure, serial, reason) .. code
    redis.call('ZADD', departed, 0, member)
    if redis.call('RPUSH', forgetting, struct.pack('>I8', now + remember) .. member) == 1 then
        renew(8, 9)
    end
    redis.call('SPUBLISH', topic_channel(topic), '')
    return left
end

-- Departures are remembered for a while.
local function forget(now, most)
    for _ = 1, most do
        local first = redis.call('LINDEX', forgetting, 0)
        if not first or struct.unpack('>I8', first) > now then
            return
        end
        redis.call('LPOP', forgetting)
        redis.call('ZREM', departed, string.sub(first, 9))
    end
end

-- Have what has expired of a topic leave its listing. Returns how many did.
local function settle_topic(topic, now, now_us, remember, most)
    local prefix = topic_prefix(topic)
    local found = redis.call('ZRANGE', expiries, '[' .. prefix, '(' .. prefix .. struct.pack('>I8', now + 1),
        'BYLEX', 'LIMIT', 0, most)
    local left
    for _, member in ipairs(found) do
        local expires, serial, at = struct.unpack('>I8I8', member, #prefix + 1)
        left = leave(topic, prefix, serial, expires, string.sub(member, at), EXPIRED, now, now_us, remember)
    end
    if #found > 0 then
        note_topic(topic, prefix, left)
        keep(now, remember)
    end
    return #found
end

-- The same of all topics. Returns whether there may be more.
local function settle(now, now_us, remember, most)
    while most > 0 do
        local found = redis.call('ZRANGE', due, '-inf', text(now), 'BYSCORE', 'LIMIT', 0, 1)
        if not found[1] then
            return false
        end
        local settled = settle_topic(found[1], now, now_us, remember, most)
        if settled == 0 then -- that it was due is not true any more
            note_topic(found[1], topic_prefix(found[1]))
        end
        most = most - math.max(1, settled)
    end
    return true
end

-- The session: what is fixed, and what both sides have sent. `answered` is the number of the answer, 0 for none; `more` is
-- another field, if one is asked for.
local function find(field)
    local found = redis.call('HMGET', session, 'h', 'e', 'k', 'b', field or 'e')
    if not found[1] then
        return nil
    end
    local it = {expires = tonumber(found[2]), answered = 0, o = {1}, a = {0, 0}, a_secret = '', tokens = '', more = found[5]}
    it.began, it.skipped = 0, 0
    if found[4] then
        it.began, it.skipped = struct.unpack('>I8I4', found[4])
    end
    it.created, it.lifetime, it.serial = struct.unpack('>I8I8I8', found[1])
    local length = string.byte(found[1], 25)
    it.o_secret = string.sub(found[1], 26, 25 + length)
    local size = struct.unpack('>I2', found[1], 26 + length)
    it.topic = string.sub(found[1], 28 + length, 27 + length + size)
    if found[3] then
        it.o[1], it.o[2], it.a[1], it.a[2], it.answered, length = struct.unpack('>I4I4I4I4I4I1', found[3])
        it.a_secret = string.sub(found[3], 22, 21 + length)
        it.tokens = string.sub(found[3], 22 + length)
    else
        it.o[2] = redis.call('HSTRLEN', session, 'o')
    end
    return it
end

-- A live session, if that side may act with this secret.
local function admitted(side, secret, now, field)
    local it = find(field)
    local kept = it and it[side .. '_secret']
    return it and it.expires > now and (kept == '' or kept == secret) and it or nil
end

-- What both sides have sent now, with the fields that are new.
local function keep_sent(it, fields)
    redis.call('HSET', session, 'k', struct.pack('>I4I4I4I4I4I1', it.o[1], it.o[2], it.a[1], it.a[2], it.answered, #it.a_secret)
        .. it.a_secret .. string.sub(it.tokens, -256), unpack(fields))
end

-- A primary may have been lost with numbers that were read and not acknowledged: they are not given again, or a reader
-- that knows them would miss what has them next.
local function skip_lost_numbers(it, now_us)
    local serial = began(now_us)
    if it.serial < serial and it.began ~= serial then
        it.o[1], it.a[1], it.skipped = it.o[1] + SKIP, it.a[1] + SKIP, it.skipped + SKIP
        keep_sent(it, {'b', struct.pack('>I8I4', serial, it.skipped)})
    end
end

-- A change that has been made before is made known to the replicas again.
local function touch(expires)
    redis.call('HSET', session, 'e', text(expires))
end

-- A session is no more at its expiry, as its field says. Its key goes a while later, by the last digits of its code.
local function expire(expires, lifetime)
    local digits = tonumber(string.sub(session, -4), 16) / 65536
    redis.call('PEXPIREAT', session, text(expires + math.floor(digits * math.min(SPREAD_MS, lifetime / 2))))
end

-- Leases but for those that begin with a prefix: a lease, or the identifier of a process.
local function without(leases, prefix)
    local rest = {}
    for at = 1, #leases, LEASE_BYTES do
        local lease = string.sub(leases, at, at + LEASE_BYTES - 1)
        if string.sub(lease, 1, #prefix) ~= prefix then
            rest[#rest + 1] = lease
        end
    end
    return table.concat(rest)
end

-- A held session has a lifetime of at least MIN_HELD_MS.
local function prolong(it)
    if it.lifetime < MIN_HELD_MS then
        it.lifetime = MIN_HELD_MS
        local fixed = redis.call('HGET', session, 'h')
        redis.call('HSET', session, 'h', string.sub(fixed, 1, 8) .. struct.pack('>I8', MIN_HELD_MS) .. string.sub(fixed, 17))
    end
end

-- A session is withdrawn: nothing is left of it but the token of the call that did it, for a repetition of that.
local function withdraw(it, code, token, now, now_us, remember)
    redis.call('DEL', session)
    redis.call('SET', tomb, token, 'PX', 10000)
    if it.answered == 0 then
        local prefix = topic_prefix(it.topic)
        local left = leave(it.topic, prefix, it.serial, it.expires, code, WITHDRAWN, now, now_us, remember)
        if left then
            note_topic(it.topic, prefix, left)
        end
        keep(it.expires, remember)
    end
    redis.call('SPUBLISH', session, '')
end

-- A listed session, or one that is not, gets another expiry.
local function move(it, code, expires, remember)
    touch(expires)
    expire(expires, it.lifetime)
    if it.answered == 0 then
        local prefix = topic_prefix(it.topic)
        local name = struct.pack('>I8', it.serial) .. code
        local before = prefix .. struct.pack('>I8', it.expires) .. name
        if expires ~= it.expires and redis.call('ZSCORE', expiries, before) then
            redis.call('ZADD', expiries, 0, prefix .. struct.pack('>I8', expires) .. name)
            redis.call('ZREM', expiries, before)
            note_topic(it.topic, prefix)
        end
    end
    keep(expires, remember)
    redis.call('SPUBLISH', session, '')
end
