-- Registers a host under a new name with all its reservations, and ends those under its old names. `try.lua` precedes
-- it.
-- KEYS: 1 all windows by expiry.
-- ARGV: 1 prefix, 2 new name, 3 old names separated by spaces, 4 duration of its lease (ms), 5 a JSON array of the
--       hash, the field and the amount of each reservation, and for how long the hash is kept (ms; 0: always).
-- Returns: 1 (done) or 2 (was done before), then the names of skipped counters.
local prefix, host = ARGV[1], ARGV[2]
if redis.call('EXISTS', prefix .. 'host:' .. host) == 1 then
    return { 2 }
end
for old in string.gmatch(ARGV[3], '%S+') do
    redis.call('DEL', prefix .. 'host:' .. old)
    redis.call('SET', prefix .. 'host:' .. old .. 'o', '1', 'PX', ARGV[4])
end
redis.call('SET', prefix .. 'host:' .. host, '1', 'PX', ARGV[4])
written = true
local now = redis.call('TIME')[1] * 1000
for _, one in ipairs(cjson.decode(ARGV[5])) do
    local hash = prefix .. one[1]
    try('HINCRBY', hash, one[2], one[3])
    if one[4] > 0 then
        try('ZADD', KEYS[1], now + one[4], hash)
        try('PEXPIRE', hash, one[4])
    end
end
return { 1, unpack(odd) }
