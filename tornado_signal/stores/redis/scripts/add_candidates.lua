-- Append candidates of one side, all or none.
-- Returns 'added', 'not found', 'too many', 'too large'.
local first = side .. '0'
local now, now_us = now_ms()
local it = admitted(side, secret_hash, now, first)
if not it then
    return 'not found'
end
if done_before(it, token) then
    write_expiry(it.expires)
    return 'added'
end
skip_lost_numbers(it, now_us)
local number, size = it[side][1], it[side][2]
for at = ARGUMENTS + 1, #ARGV do
    size = size + #ARGV[at]
end
local described = (side == 'o' or it.answered > 0) and 1 or 0 -- the offer and the answer are numbered like candidates
if number - it.skipped - described + #ARGV - ARGUMENTS > max_candidates then
    return 'too many'
elseif size > max_bytes then
    return 'too large'
end
local fields = {} -- each field name followed by its new content
for at = ARGUMENTS + 1, #ARGV do
    number = number + 1
    local field = side .. math.floor(number / CHUNK)
    if field ~= fields[#fields - 1] then
        local chunk = it.more
        if field ~= first then
            chunk = redis.call('HGET', session, field)
        end
        fields[#fields + 1], fields[#fields + 2] = field, chunk or ''
    end
    fields[#fields] = fields[#fields] .. struct.pack('>I4I4', number, #ARGV[at]) .. ARGV[at]
end
it[side] = {number, size}
it.tokens = it.tokens .. token
keep_sent(it, fields)
redis.call('SPUBLISH', session, '')
return 'added'
