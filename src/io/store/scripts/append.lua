-- Appends a batch of rows as one entry, adds what they come to to every sum and gives their leases back: all of it once,
-- however often it is sent, for a batch has a number.
-- KEYS: 1 number of the writer's last batch, 2 rows, 3 days, 4 all windows by expiry
-- ARGV: 1 prefix, 2 number of the batch, 3 host, 4 the rows as a JSON array, then four lists, each behind its length:
--       increments: name of the hash, field, by how much; days; names of groups; days with users or sessions. Then, with
--       as many values as those behind them: what was admitted by grants, for each account, window, period and grant; and
--       what has ended, for each account, window, period and whether its leases were lent, or the host admitted alone ("1"
--       or "0"): name, "<start>:<end>" of the window, how long its counts are kept from now on (ms), start of the period
--       (ms), name of the grant, or lent or not, requests, tokens used, tokens reserved, nano-dollars reserved
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

-- The first write: where the rows themselves are not what they should be, nothing has been done.
if ARGV[4] ~= '[]' then
    redis.call('XADD', KEYS[2], '*', 'rows', ARGV[4])
end
local at = 5
-- Hands what stands at `at` to `take`: its length, then so many times `each` values.
local function list(each, take)
    local behind = at + 1 + each * ARGV[at]
    for i = at + 1, behind - 1, each do
        take(ARGV[i], ARGV[i + 1], ARGV[i + 2])
    end
    at = behind
end
list(3, function(name, field, amount)
    try('HINCRBY', prefix .. name, field, amount)
end)
list(1, function(day)
    try('ZADD', KEYS[3], day, day)
end)
list(1, function(group)
    try('SADD', prefix .. 'groups', group)
end)
list(1, function(day)
    local hash = prefix .. 'who:' .. day
    if (try('HLEN', hash) or 0) > 18000 then
        trim(hash)
    end
end)
local ended = at + 1 + 9 * ARGV[at]
for i = at + 1, ended - 1, 9 do
    local grant, requests, tokens, nano = ARGV[i + 4], ARGV[i + 5], ARGV[i + 7], ARGV[i + 8]
    local live, due = prefix .. 'live:' .. ARGV[i], prefix .. 'due:' .. ARGV[i]
    local window, of = prefix .. 'win:' .. ARGV[i] .. ':' .. ARGV[i + 1], ':' .. ARGV[i + 3]
    if try('HINCRBY', window, 'q', requests) == tonumber(requests) then
        try('ZADD', KEYS[4], now + ARGV[i + 2], window)
        try('PEXPIRE', window, ARGV[i + 2])
    end
    -- From the grant to what the host holds.
    if lives == 1 then
        try('HINCRBY', live, 'n:' .. host, requests)
        try('HINCRBY', live, 'r:' .. host .. of, tokens)
        try('HINCRBY', window, 'r:' .. host, tokens)
        if nano ~= '0' then
            try('HINCRBY', due, 'r:' .. host .. of, nano)
        end
    end
    if redis.call('EXISTS', prefix .. 'host:' .. grant) == 1 then
        less(window, 'q:' .. grant, requests)
        less(window, 'r:' .. grant, tokens)
        less(live, 'r:' .. grant .. of, tokens)
        less(due, 'r:' .. grant .. of, nano)
    end
end
for i = ended, #ARGV, 9 do
    local account, window = ARGV[i], prefix .. 'win:' .. ARGV[i] .. ':' .. ARGV[i + 1]
    if ARGV[i + 4] == '0' then
        try('HINCRBY', window, 'q', ARGV[i + 5])
        try('HINCRBY', window, 't', ARGV[i + 6])
        try('ZADD', KEYS[4], now + ARGV[i + 2], window)
        try('PEXPIRE', window, ARGV[i + 2])
    else
        local open = redis.call('EXISTS', window) == 1
        if open then
            try('HINCRBY', window, 't', ARGV[i + 6])
        end
        if lives == 1 then
            local field = 'r:' .. host .. ':' .. ARGV[i + 3]
            less(prefix .. 'live:' .. account, 'n:' .. host, ARGV[i + 5])
            less(prefix .. 'live:' .. account, field, ARGV[i + 7])
            less(prefix .. 'due:' .. account, field, ARGV[i + 8])
            if open then
                less(window, 'r:' .. host, ARGV[i + 7])
            end
        end
    end
end
try('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
redis.call('SET', KEYS[1], number, 'EX', 604800)
return { lives, unpack(odd) }
