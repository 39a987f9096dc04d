-- A host comes under a new name, with all that it still holds; what it held under the old one ends.
-- KEYS: 1 all windows by expiry
-- ARGV: 1 prefix, 2 new name, 3 old name or "", 4 length of its lease (ms), then for each group of holds: key,
--       "<start>:<end>" of the window, how long its counts are kept from now on (ms), start of the period (ms), tokens
--       reserved, how many
local prefix, host = ARGV[1], ARGV[2]
if ARGV[3] ~= '' then
    redis.call('DEL', prefix .. 'host:' .. ARGV[3])
end
redis.call('SET', prefix .. 'host:' .. host, '1', 'PX', ARGV[4])
local now = redis.call('TIME')[1] * 1000
for at = 5, #ARGV, 6 do
    local live, window = prefix .. 'live:' .. ARGV[at], prefix .. 'win:' .. ARGV[at] .. ':' .. ARGV[at + 1]
    redis.call('HINCRBY', live, 'n:' .. host, ARGV[at + 5])
    redis.call('HINCRBY', live, 'r:' .. host .. ':' .. ARGV[at + 3], ARGV[at + 4])
    redis.call('HINCRBY', window, 'r:' .. host, ARGV[at + 4])
    redis.call('ZADD', KEYS[1], now + ARGV[at + 2], window)
    redis.call('PEXPIRE', window, ARGV[at + 2])
end
return 1
