-- Appends a batch of rows, adds them to every sum and gives their leases back: all of it once, however often it is
-- sent, for a batch has a number.
-- KEYS: 1 number of the writer's last batch, 2 rows, 3 days, 4 all windows by expiry
-- ARGV: 1 prefix, 2 number of the batch, 3 host, then for each row: the row as JSON, key, day, what its sums
--       are told apart by as JSON, six sums, tokens, "<start>:<end>" of the window, how long its counts are kept from now on (ms), start
--       of the period (ms), tokens reserved, "1" if a lease was lent and "0" if the host admitted it alone
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
for at = 4, #ARGV, 16 do
    local key, day, place, tokens = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 10]
    -- The first write: where the rows themselves are not what they should be, nothing has been done.
    redis.call('XADD', KEYS[2], '*', 'row', ARGV[at])
    for n = 0, 5 do
        local value = ARGV[at + 4 + n]
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
                local value = ARGV[at + 4 + n]
                if value ~= '0' then
                    try('HINCRBY', hash, n .. kind .. name, value)
                end
            end
        end
        named[hash] = true
    end
    try('HINCRBY', prefix .. 'use:' .. key, day, tokens)
    local window = prefix .. 'win:' .. key .. ':' .. ARGV[at + 11]
    if ARGV[at + 15] == '0' then
        try('HINCRBY', window, 'q', 1)
        try('HINCRBY', window, 't', tokens)
        try('ZADD', KEYS[4], now + ARGV[at + 12], window)
        try('PEXPIRE', window, ARGV[at + 12])
    else
        local open = redis.call('EXISTS', window) == 1
        if open then
            try('HINCRBY', window, 't', tokens)
        end
        if lives == 1 then
            local reserved = ARGV[at + 14]
            less(prefix .. 'live:' .. key, 'n:' .. host, '1')
            less(prefix .. 'live:' .. key, 'r:' .. host .. ':' .. ARGV[at + 13], reserved)
            if open then
                less(window, 'r:' .. host, reserved)
            end
        end
    end
end
for hash in pairs(named) do
    if (try('HLEN', hash) or 0) > 18000 then
        trim(hash)
    end
end
try('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
redis.call('SET', KEYS[1], number, 'EX', 604800)
return { lives, unpack(odd) }
