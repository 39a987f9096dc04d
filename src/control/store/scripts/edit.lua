-- Stores the record of a key.
-- KEYS: 1 keys, 2 their version, 3 the audit, 4 the answer to this idempotency key, 5 keys by creation.
-- ARGV: 1 id, 2 the record as it was read ("": none), 3 the new record, 4 a line of the audit, 5 number of lines kept,
--       6 the answer ("": without idempotency key), 7 for how long it is kept (ms), 8 time at which the key was issued.
-- Returns: 1 (stored), 0 (the record has changed since it was read) or 2 (this idempotency key was used before).
if ARGV[6] ~= '' and redis.call('EXISTS', KEYS[4]) == 1 then
    return 2
end
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then
    return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
if ARGV[2] == '' then
    redis.call('ZADD', KEYS[5], ARGV[8], ARGV[1])
end
redis.call('INCR', KEYS[2])
redis.call('LPUSH', KEYS[3], ARGV[4])
redis.call('LTRIM', KEYS[3], 0, ARGV[5] - 1)
if ARGV[6] ~= '' then
    redis.call('SET', KEYS[4], ARGV[6], 'PX', ARGV[7])
end
return 1
