-- Writes a decision of the operator about the clock. If it is sent twice, the second time changes nothing.
-- KEYS: 1 knowledge about the clocks, 2 the audit, 3 version of the keys, by which hosts notice the decision.
-- ARGV: 1 line of the audit, 2 number of lines kept; then fields of the clock, each with its value ("": none).
if redis.call('LINDEX', KEYS[2], 0) == ARGV[1] then
    return
end
for at = 3, #ARGV, 2 do
    if ARGV[at + 1] == '' then
        redis.call('HDEL', KEYS[1], ARGV[at])
    else
        redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
    end
end
redis.call('LPUSH', KEYS[2], ARGV[1])
redis.call('LTRIM', KEYS[2], 0, ARGV[2] - 1)
redis.call('INCR', KEYS[3])
