-- Appends a batch of rows, adds them to every sum and gives their leases back: all of it once, however often it is
-- sent, for a batch has a number.
-- KEYS: 1 number of the writer's last batch, 2 rows, 3 days, 4 all windows by expiry
-- ARGV: 1 prefix, 2 number of the batch, 3 host, then for each row: the row as JSON, day, what its sums are told apart
--       by as JSON, six sums, tokens, tokens reserved, nano-dollars reserved, "1" if a lease was lent and "0" if the host
--       admitted it alone, number of its accounts, and for each of these, its key and the groups above that: name,
--       "<start>:<end>" of the window, how long its counts are kept from now on (ms), start of the period (ms)
-- Returns: 1 done, 0 done but the host's lease has ended, 2 was done before; with it the names of what was passed over
local prefix, number, host = ARGV[1], ARGV[2], ARGV[3]
if tonumber(redis.call('GET', KEYS[1]) or '0') >= tonumber(number) then
    return { 2 }
end
local lives = redis.call('EXISTS', prefix .. 'host:' .. host)
local now = redis.call('TIME')[1] * 1000

-- A counter that is of the wrong type is passed over and named, so that it keeps nothing else from being written.
local odd = {}
local function try(command, name, ...)
    local done = redis.pcall(command, name, ...)
    if type(done) == 'table' and done.err then
        if not odd[name] then
            odd[name] = true
            odd[#odd + 1] = name
        end
        return nil
    end
    return done
end
local function less(hash, field, amount)
    if amount ~= '0' and (try('HINCRBY', hash, field, '-' .. amount) or 1) <= 0 then
        redis.call('HDEL', hash, field)
    end
end

-- Counts the row at `at` in the account that is named at `by`.
local function count(at, by)
    local day, cost, tokens, account = ARGV[at + 1], ARGV[at + 8], ARGV[at + 9], ARGV[by]
    try('HINCRBY', prefix .. 'use:' .. account, day, tokens)
    if cost ~= '0' then
        try('HINCRBY', prefix .. 'cost:' .. account, day, cost)
    end
    local window = prefix .. 'win:' .. account .. ':' .. ARGV[by + 1]
    if ARGV[at + 12] == '0' then
        try('HINCRBY', window, 'q', 1)
        try('HINCRBY', window, 't', tokens)
        try('ZADD', KEYS[4], now + ARGV[by + 2], window)
        try('PEXPIRE', window, ARGV[by + 2])
        return
    end
    local open = redis.call('EXISTS', window) == 1
    if open then
        try('HINCRBY', window, 't', tokens)
    end
    if lives == 1 then
        local reserved, field = ARGV[at + 10], 'r:' .. host .. ':' .. ARGV[by + 3]
        less(prefix .. 'live:' .. account, 'n:' .. host, '1')
        less(prefix .. 'live:' .. account, field, reserved)
        less(prefix .. 'due:' .. account, field, ARGV[at + 11])
        if open then
            less(window, 'r:' .. host, reserved)
        end
    end
end

local at = 4
while at <= #ARGV do
    local day, place = ARGV[at + 1], ARGV[at + 2]
    -- The first write: where the rows themselves are not what they should be, nothing has been done.
    redis.call('XADD', KEYS[2], '*', 'row', ARGV[at])
    for n = 0, 5 do
        local value = ARGV[at + 3 + n]
        if value ~= '0' then
            try('HINCRBY', prefix .. 'day:' .. day, n .. place, value)
        end
    end
    try('ZADD', KEYS[3], day, day)
    local behind = at + 14 + 4 * ARGV[at + 13]
    for by = at + 14, behind - 1, 4 do
        if by > at + 14 then
            try('SADD', prefix .. 'groups', ARGV[by])
        end
        count(at, by)
    end
    at = behind
end
try('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
redis.call('SET', KEYS[1], number, 'EX', 604800)
return { lives, unpack(odd) }
