-- Stores the record of a key if nobody has changed it since it was read.
-- KEYS: 1 keys, 2 their version. ARGV: 1 id, 2 the record as it was read, "" for none, 3 the record as it shall be
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then
    return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('INCR', KEYS[2])
return 1
