-- Stores the record of a key if nobody has changed it since it was read (1; else 0), and if nothing has been done under
-- the name of the answer (else 2).
-- KEYS: 1 keys, 2 their version, 3 the audit, 4 an answer, 5 keys by creation. ARGV: 1 id, 2 the record as it was read, "" for none, 3 the
-- record as it shall be, 4 a line of the audit and 5 how many are kept, 6 an answer, "" for none, and 7 for how many
-- milliseconds, 8 when the key was issued
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
