-- Registers a host under a new name with all its reservations, and ends those under its old names. `try.lua` precedes
-- it.
-- KEYS: 1 all windows by expiry.
-- ARGV: 1 prefix, 2 new name, 3 old names separated by spaces, 4 duration of its lease (ms); then for each account with
--       reservations: name, "<start>:<end>" of the window, for how long the window's counts are kept (ms), start of the
--       period (ms), reserved tokens, running requests, reserved nano-dollars, requests among these that the ledger has
--       admitted and the host has not confirmed yet.
-- Returns: 1 (done) or 2 (was done before), then the names of skipped counters.
local prefix, host = ARGV[1], ARGV[2]
if redis.call('EXISTS', prefix .. 'host:' .. host) == 1 then
    return { 2 }
end
for old in string.gmatch(ARGV[3], '%S+') do
    redis.call('DEL', prefix .. 'host:' .. old)
    redis.call('SET', prefix .. 'host:' .. old .. 'o', '1', 'PX', ARGV[4])
end
redis.call('SET', prefix .. 'host:' .. host, '1', 'PX', ARGV[4])
written = true
local now = redis.call('TIME')[1] * 1000
for at = 5, #ARGV, 8 do
    local live, window = prefix .. 'live:' .. ARGV[at], prefix .. 'win:' .. ARGV[at] .. ':' .. ARGV[at + 1]
    try('HINCRBY', live, 'n:' .. host, ARGV[at + 5])
    try('HINCRBY', live, 'r:' .. host .. ':' .. ARGV[at + 3], ARGV[at + 4])
    if ARGV[at + 6] ~= '0' then
        try('HINCRBY', prefix .. 'due:' .. ARGV[at], 'r:' .. host .. ':' .. ARGV[at + 3], ARGV[at + 6])
    end
    try('HINCRBY', window, 'r:' .. host, ARGV[at + 4])
    if ARGV[at + 7] ~= '0' then
        try('HINCRBY', window, 'q:' .. host, ARGV[at + 7])
    end
    try('ZADD', KEYS[1], now + ARGV[at + 2], window)
    try('PEXPIRE', window, ARGV[at + 2])
end
return { 1, unpack(odd) }
