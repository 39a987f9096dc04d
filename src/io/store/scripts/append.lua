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

-- Of the users, and of the sessions, of a day the largest stay by name; the others are one, called "\1".
local function trim(hash)
    local fields, sums, lists = redis.call('HGETALL', hash), {}, { u = {}, s = {} }
    for i = 1, #fields, 2 do
        local who = string.sub(fields[i], 2)
        local one = sums[who]
        if not one then
            one = { who = who, tokens = 0, cost = 0 }
            sums[who] = one
            local list = lists[string.sub(who, 1, 1)]
            if list and string.sub(who, 2) ~= '\1' then
                list[#list + 1] = one
            end
        end
        local n, value = string.byte(fields[i]) - 48, tonumber(fields[i + 1])
        one[n] = value
        if n == 5 then
            one.cost = value
        elseif n > 0 then
            one.tokens = one.tokens + value
        end
    end
    local gone = {}
    for kind, list in pairs(lists) do
        table.sort(list, function(a, b)
            if a.cost ~= b.cost then
                return a.cost > b.cost
            end
            return a.tokens > b.tokens or (a.tokens == b.tokens and a.who < b.who)
        end)
        for n = 0, 5 do
            local rest = 0
            for i = 1001, #list do
                local value = list[i][n]
                if value then
                    gone[#gone + 1] = n .. list[i].who
                    -- Numbers are exact up to 2^53 here.
                    if rest + value > 4503599627370496 then
                        redis.call('HINCRBY', hash, n .. kind .. '\1', string.format('%.0f', rest))
                        rest = 0
                    end
                    rest = rest + value
                end
            end
            if rest > 0 then
                redis.call('HINCRBY', hash, n .. kind .. '\1', string.format('%.0f', rest))
            end
        end
    end
    for i = 1, #gone, 1000 do
        redis.call('HDEL', hash, unpack(gone, i, math.min(i + 999, #gone)))
    end
end

local named = {}
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
    -- Mostly a row says of nobody whom it is for.
    if string.find(ARGV[at], '"w":', 1, true) or string.find(ARGV[at], '"z":', 1, true) then
        local row, hash = cjson.decode(ARGV[at]), prefix .. 'who:' .. day
        for kind, name in pairs({ u = row.w, s = row.z }) do
            for n = 0, 5 do
                local value = ARGV[at + 3 + n]
                if value ~= '0' then
                    try('HINCRBY', hash, n .. kind .. name, value)
                end
            end
        end
        named[hash] = true
    end
    local behind = at + 14 + 4 * ARGV[at + 13]
    for by = at + 14, behind - 1, 4 do
        if by > at + 14 then
            try('SADD', prefix .. 'groups', ARGV[by])
        end
        count(at, by)
    end
    at = behind
end
for hash in pairs(named) do
    if (try('HLEN', hash) or 0) > 18000 then
        trim(hash)
    end
end
try('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
redis.call('SET', KEYS[1], number, 'EX', 604800)
return { lives, unpack(odd) }
