-- Ends the reservations of requests that leave no row. `try.lua` precedes it.
-- ARGV: 1 prefix, 2 host; then for each account of each request: name, "<start>:<end>" of the window, start of the
--       period (ms), reserved tokens, reserved nano-dollars, "1" if the request was never sent and does not count.
-- Returns: 1 (done) or 0 (the host's lease has ended), then the names of skipped counters.
local prefix, host = ARGV[1], ARGV[2]
if redis.call('EXISTS', prefix .. 'host:' .. host) == 0 then
    return { 0 }
end
local function less(hash, field, amount)
    if amount ~= '0' and (try('HINCRBY', hash, field, '-' .. amount) or 1) <= 0 then
        redis.call('HDEL', hash, field)
    end
end
for at = 3, #ARGV, 6 do
    local live, window = prefix .. 'live:' .. ARGV[at], prefix .. 'win:' .. ARGV[at] .. ':' .. ARGV[at + 1]
    less(live, 'n:' .. host, '1')
    less(live, 'r:' .. host .. ':' .. ARGV[at + 2], ARGV[at + 3])
    less(prefix .. 'due:' .. ARGV[at], 'r:' .. host .. ':' .. ARGV[at + 2], ARGV[at + 4])
    if redis.call('EXISTS', window) == 1 then
        less(window, 'r:' .. host, ARGV[at + 3])
        less(window, 'q:' .. host, ARGV[at + 5])
    end
end
return { 1, unpack(odd) }
