-- Folds the oldest rows into the sums of their days.
-- KEYS: 1 rows, 2 days with folded sums, 3 how often rows were folded
-- ARGV: 1 prefix, 2 rows appended before this (ms) are folded, 3 at most so many
local entries = redis.call('XRANGE', KEYS[1], '-', '(' .. ARGV[2] .. '-0', 'COUNT', ARGV[3])
for _, entry in ipairs(entries) do
    local row = cjson.decode(entry[2][2])
    local day = string.format('%d', math.floor(row.a / 86400000))
    local place = cjson.encode({ row.k, row.m, row.t, row.g or '', row.e, row.l or '' })
    local sums = { 1, row.u[1], row.u[2], row.u[3], row.u[4], row.n }
    -- What is not what it should be stops this here, before anything of the row is changed.
    redis.call('ZADD', KEYS[2], day, day)
    for n = 1, 6 do
        if sums[n] > 0 then
            redis.call('HINCRBY', ARGV[1] .. 'folded:' .. day, (n - 1) .. place, string.format('%.0f', sums[n]))
        end
    end
    redis.call('XDEL', KEYS[1], entry[1])
end
if #entries > 0 then
    redis.call('INCR', KEYS[3])
end
return #entries
