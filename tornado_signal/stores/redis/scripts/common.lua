-- Functions of all scripts. `scripts.py` puts constants and keys before this text, and the arguments of a script after it.
-- Every script declares all keys of its partition that it can use. Otherwise it could fail halfway while its slot moves.
local known_history = table.remove(ARGV) -- the last argument: the node's recent history id, or ''
local expired = {} -- code, topic and expiry of each session that this call removes from its listing because it expired
local SKIP = 256 -- more than a side sends while a primary that will be replaced acknowledges nothing

local function now_ms()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000), time[1] * 1000000 + time[2]
end

-- Print all digits of a number. Lua's own format has only 14.
local function text(number)
    return string.format('%.0f', number)
end

local function topic_prefix(topic)
    return struct.pack('>I2', #topic) .. topic
end

-- Return the next serial. It is at least the time in microseconds, so that serials advance even if a failover loses
-- the latest ones.
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

-- Record the next expiry of a topic, or remove an empty topic. `left` is the number of its sessions, nil if unknown.
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

-- Extend the keys of a partition, which outlive all their content.
local function extend_keys(first, last)
    local until_ms = redis.call('HGET', meta, 'x') or text(now_ms() + 86400000)
    for at = first, last do
        redis.call('PEXPIREAT', KEYS[at], until_ms)
    end
end

local function extend_partition(expires, remember, until_ms)
    if (tonumber(until_ms or redis.call('HGET', meta, 'x')) or 0) < expires + remember then
        redis.call('HSET', meta, 'x', text(expires + 2 * remember))
        extend_keys(3, 9)
    end
end

local function current_history()
    return string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
end

-- Return the first serial of this node's history. Another primary, or the same one after a restart, has another history.
local function history_start(now_us)
    local fields = redis.call('HMGET', meta, 'r', 'b', 's')
    if fields[1] == known_history then -- INFO takes longer than the rest of a small script
        return tonumber(fields[2])
    end
    local history = current_history()
    if fields[1] ~= history then
        fields[2] = text(next_serial(fields[3], now_us))
        redis.call('HSET', meta, 'r', history, 'b', fields[2], 's', fields[2])
    end
    return tonumber(fields[2])
end

-- Record the removal or the refresh of a session, and wake the readers of the topic.
local function record(topic, member, until_ms)
    redis.call('ZADD', departed, 0, member)
    if redis.call('RPUSH', forgetting, struct.pack('>I8', until_ms) .. member) == 1 then
        extend_keys(8, 9)
    end
    redis.call('SPUBLISH', topic_channel(topic), '')
end

-- Return the prefix of the records of a topic's refreshes. No topic has such a name, so earlier versions skip them.
local function refreshes_prefix(topic)
    return topic_prefix(topic .. '\255')
end

-- Remove a session from its topic's listing. The caller has to call note_topic. Returns the number of sessions left in the
-- topic, or nil if it was not listed.
local function delist(topic, prefix, serial, expires, code, reason, now, now_us, remember)
    local name = struct.pack('>I8', serial) .. code
    if redis.call('ZREM', listing, prefix .. name) == 0 then
        return nil
    end
    redis.call('ZREM', expiries, prefix .. struct.pack('>I8', expires) .. name)
    local fields = redis.call('HMGET', meta, 's', 'n', '=' .. topic)
    local removal_serial, left = next_serial(fields[1], now_us), (fields[3] or 1) - 1
    redis.call('HSET', meta, 's', text(removal_serial), 'n', (fields[2] or 1) - 1, '=' .. topic, left)
    record(topic, prefix .. struct.pack('>I8I8I1', removal_serial, serial, reason) .. code, now + remember)
    if reason == EXPIRED then
        expired[#expired + 1], expired[#expired + 2], expired[#expired + 3] = code, topic, text(expires)
    end
    return left
end

-- Delete outdated records of removals, at most `max_items`.
local function forget_removals(now, max_items)
    local last
    for _ = 1, max_items do
        local first = redis.call('LINDEX', forgetting, 0)
        if not first or struct.unpack('>I8', first) > now then
            break
        end
        redis.call('LPOP', forgetting)
        redis.call('ZREM', departed, string.sub(first, 9))
        last = first
    end
    if last then -- its serial is after the expiry, the length of the topic, and the topic
        redis.call('HSET', meta, 'f', text(struct.unpack('>I8', last, 11 + struct.unpack('>I2', last, 9))))
    end
end

-- Remove expired sessions of a topic from its listing. Returns their number.
local function expire_topic(topic, now, now_us, remember, max_items)
    local prefix = topic_prefix(topic)
    local members = redis.call('ZRANGE', expiries, '[' .. prefix, '(' .. prefix .. struct.pack('>I8', now + 1),
        'BYLEX', 'LIMIT', 0, max_items)
    local left
    for _, member in ipairs(members) do
        local expires, serial, at = struct.unpack('>I8I8', member, #prefix + 1)
        left = delist(topic, prefix, serial, expires, string.sub(member, at), EXPIRED, now, now_us, remember)
    end
    if #members > 0 then
        note_topic(topic, prefix, left)
        extend_partition(now, remember)
    end
    return #members
end

-- Remove expired sessions of all topics from their listings. Returns whether more can be left.
local function expire_due(now, now_us, remember, max_items)
    while max_items > 0 do
        local names = redis.call('ZRANGE', due, '-inf', text(now), 'BYSCORE', 'LIMIT', 0, 1)
        if not names[1] then
            return false
        end
        local expired = expire_topic(names[1], now, now_us, remember, max_items)
        if expired == 0 then -- its recorded expiry is outdated
            note_topic(names[1], topic_prefix(names[1]))
        end
        max_items = max_items - math.max(1, expired)
    end
    return true
end

-- Read the session: its fixed data and the state of both sides' messages. `answered` is the number of the answer, 0 for
-- none. `more` is the content of `field`.
local function find(field)
    local fields = redis.call('HMGET', session, 'h', 'e', 'k', 'b', field or 'e')
    if not fields[1] then
        return nil
    end
    local it = {expires = tonumber(fields[2]), answered = 0, o = {1}, a = {0, 0}, a_secret = '', tokens = '', more = fields[5]}
    it.began, it.skipped = 0, 0
    if fields[4] then
        it.began, it.skipped = struct.unpack('>I8I4', fields[4])
    end
    it.created, it.lifetime, it.serial = struct.unpack('>I8I8I8', fields[1])
    local length = string.byte(fields[1], 25)
    it.o_secret = string.sub(fields[1], 26, 25 + length)
    local size = struct.unpack('>I2', fields[1], 26 + length)
    it.topic = string.sub(fields[1], 28 + length, 27 + length + size)
    if fields[3] then
        it.o[1], it.o[2], it.a[1], it.a[2], it.answered, length = struct.unpack('>I4I4I4I4I4I1', fields[3])
        it.a_secret = string.sub(fields[3], 22, 21 + length)
        it.tokens = string.sub(fields[3], 22 + length)
    else
        it.o[2] = redis.call('HSTRLEN', session, 'o')
    end
    return it
end

-- Return the session if it is live and the secret is that of the side, otherwise nil.
local function admitted(side, secret, now, field)
    local it = find(field)
    local side_secret = it and it[side .. '_secret']
    return it and it.expires > now and (side_secret == '' or side_secret == secret) and it or nil
end

-- Return whether a call with this token has changed the messages. Then its reply was lost, or not confirmed.
local function done_before(it, token)
    for at = 1, #it.tokens, 8 do
        if string.sub(it.tokens, at, at + 7) == token then
            return true
        end
    end
    return false
end

-- Store the state of both sides' messages, and further fields.
local function keep_sent(it, fields)
    redis.call('HSET', session, 'k', struct.pack('>I4I4I4I4I4I1', it.o[1], it.o[2], it.a[1], it.a[2], it.answered, #it.a_secret)
        .. it.a_secret .. string.sub(it.tokens, -256), unpack(fields))
end

-- Skip numbers after a failover. The lost primary can have shown numbers to readers without acknowledging them. If they
-- were assigned again, these readers would miss the new messages.
local function skip_lost_numbers(it, now_us)
    local serial = history_start(now_us)
    if it.serial < serial and it.began ~= serial then
        it.o[1], it.a[1], it.skipped = it.o[1] + SKIP, it.a[1] + SKIP, it.skipped + SKIP
        keep_sent(it, {'b', struct.pack('>I8I4', serial, it.skipped)})
    end
end

-- Write the expiry. An unchanged one is also written, so that the reply to a repeated call waits for the replicas.
local function write_expiry(expires)
    redis.call('HSET', session, 'e', text(expires))
end

-- Set the expiry of the session's key. The session itself expires earlier, by its field. The delay depends on the code, so
-- that deletions are spread over time.
local function expire_key(expires, lifetime)
    local digits = tonumber(string.sub(session, -4), 16) / 65536
    redis.call('PEXPIREAT', session, text(expires + math.floor(digits * math.min(SPREAD_MS, lifetime / 2))))
end

-- Return the leases that do not begin with a prefix, which is a lease or the id of a process.
local function without_leases(leases, prefix)
    local rest = {}
    for at = 1, #leases, LEASE_BYTES do
        local lease = string.sub(leases, at, at + LEASE_BYTES - 1)
        if string.sub(lease, 1, #prefix) ~= prefix then
            rest[#rest + 1] = lease
        end
    end
    return table.concat(rest)
end

-- Raise the lifetime of a held session to at least MIN_HELD_MS.
local function raise_lifetime(it)
    if it.lifetime < MIN_HELD_MS then
        it.lifetime = MIN_HELD_MS
        local fixed = redis.call('HGET', session, 'h')
        redis.call('HSET', session, 'h', string.sub(fixed, 1, 8) .. struct.pack('>I8', MIN_HELD_MS) .. string.sub(fixed, 17))
    end
end

-- Withdraw a session. The token of the call remains for a while, so that a repetition of the call succeeds.
local function withdraw(it, code, token, now, now_us, remember)
    redis.call('DEL', session)
    redis.call('SET', tomb, token, 'PX', 10000)
    if it.answered == 0 then
        local prefix = topic_prefix(it.topic)
        local left = delist(it.topic, prefix, it.serial, it.expires, code, WITHDRAWN, now, now_us, remember)
        if left then
            note_topic(it.topic, prefix, left)
        end
        extend_partition(it.expires, remember)
    end
    redis.call('SPUBLISH', session, '')
end

-- Set another expiry of a session, listed or not. With `announced_us`, the time in microseconds, a new expiry of a listed
-- session is an event. Returns whether it is.
local function set_expiry(it, code, expires, remember, announced_us)
    local announced = false
    write_expiry(expires)
    expire_key(expires, it.lifetime)
    if it.answered == 0 then
        local prefix = topic_prefix(it.topic)
        local name = struct.pack('>I8', it.serial) .. code
        local before = prefix .. struct.pack('>I8', it.expires) .. name
        if expires ~= it.expires and redis.call('ZSCORE', expiries, before) then
            redis.call('ZADD', expiries, 0, prefix .. struct.pack('>I8', expires) .. name)
            redis.call('ZREM', expiries, before)
            note_topic(it.topic, prefix)
            if announced_us then
                local now, serial = math.floor(announced_us / 1000), next_serial(redis.call('HGET', meta, 's'), announced_us)
                forget_removals(now, 4)
                redis.call('HSET', meta, 's', text(serial))
                record(it.topic, refreshes_prefix(it.topic) .. struct.pack('>I8I8I1', serial, it.serial, 0) .. code, now + remember)
                announced = true
            end
        end
    end
    extend_partition(expires, remember)
    redis.call('SPUBLISH', session, '')
    return announced
end
