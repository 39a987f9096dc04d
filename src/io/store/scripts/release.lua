-- Gives leases back that have no row.
-- ARGV: 1 prefix, 2 host, then for each: key, "<start>:<end>" of the window, start of the period (ms), tokens reserved
local prefix, host = ARGV[1], ARGV[2]
if redis.call('EXISTS', prefix .. 'host:' .. host) == 0 then
    return 0
end
local function less(hash, field, amount)
    if amount ~= '0' and redis.call('HINCRBY', hash, field, '-' .. amount) <= 0 then
        redis.call('HDEL', hash, field)
    end
end
for at = 3, #ARGV, 4 do
    local live, window = prefix .. 'live:' .. ARGV[at], prefix .. 'win:' .. ARGV[at] .. ':' .. ARGV[at + 1]
    less(live, 'n:' .. host, '1')
    less(live, 'r:' .. host .. ':' .. ARGV[at + 2], ARGV[at + 3])
    if redis.call('EXISTS', window) == 1 then
        less(window, 'r:' .. host, ARGV[at + 3])
    end
end
return 1
