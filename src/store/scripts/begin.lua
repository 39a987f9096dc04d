-- Begins a ledger where none has begun, and brings one of an older version up to date.
-- KEYS: 1 its epoch, 2 its format, 3 the epoch that is taken over on purpose
-- ARGV: 1 the epoch of a new one, 2 the format, 3 for how long others take it over (s), "0" not at all
-- Returns: its epoch
redis.call('SET', KEYS[1], ARGV[1], 'NX')
local epoch = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1] .. ':' .. epoch, '1')
redis.call('SET', KEYS[2], ARGV[2])
if ARGV[3] ~= '0' then
    redis.call('SET', KEYS[3], epoch, 'EX', ARGV[3])
end
return epoch
