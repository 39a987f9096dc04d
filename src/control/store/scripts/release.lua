-- Ends the reservations of requests that leave no row. `try.lua` precedes it.
-- ARGV: 1 prefix, 2 host; then a JSON array of the hash, the field and the amount of each.
-- Returns: 1 (done) or 0 (the host's lease has ended), then the names of skipped counters.
if redis.call('EXISTS', ARGV[1] .. 'host:' .. ARGV[2]) == 0 then
    return { 0 }
end
for _, one in ipairs(cjson.decode(ARGV[3])) do
    local hash, field, amount = ARGV[1] .. one[1], one[2], one[3]
    if redis.call('EXISTS', hash) == 1 and (try('HINCRBY', hash, field, '-' .. amount) or 1) <= 0 then
        redis.call('HDEL', hash, field)
    end
end
return { 1, unpack(odd) }
