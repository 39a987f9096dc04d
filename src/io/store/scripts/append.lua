-- Appends a batch of rows as one entry, adds what they come to to every sum and gives their leases back: all of it once,
-- however often it is sent, for a batch has a number.
-- KEYS: 1 number of the writer's last batch, 2 rows, 3 days, 4 all windows by expiry
-- ARGV: 1 prefix, 2 number of the batch, 3 host, 4 the rows as a JSON array, then four lists, each behind its length:
--       increments: name of the hash, field, by how much; days; names of groups; days with users or sessions. Then what
--       was admitted by a grant and what has ended, for each account, window, period, grant: name, "<start>:<end>" of the
--       window, how long its counts are kept from now on (ms), start of the period (ms), requests, tokens used, "1" if the
--       host admitted alone, by how much what the host holds is more or less: requests, tokens, nano-dollars; name of the
--       grant or "", and what was taken of it: requests, tokens, nano-dollars
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
local function change(hash, field, amount)
    if string.sub(amount, 1, 1) == '-' then
        less(hash, field, string.sub(amount, 2))
    elseif amount ~= '0' then
        try('HINCRBY', hash, field, amount)
    end
end
for i = at, #ARGV, 14 do
    local live, due = prefix .. 'live:' .. ARGV[i], prefix .. 'due:' .. ARGV[i]
    local window, period, requests, tokens = prefix .. 'win:' .. ARGV[i] .. ':' .. ARGV[i + 1], ':' .. ARGV[i + 3],
        ARGV[i + 4], ARGV[i + 5]
    local is_first = requests ~= '0' and try('HINCRBY', window, 'q', requests) == tonumber(requests)
    if is_first or ARGV[i + 6] == '1' then
        try('ZADD', KEYS[4], now + ARGV[i + 2], window)
        try('PEXPIRE', window, ARGV[i + 2])
    end
    local open = requests ~= '0' or redis.call('EXISTS', window) == 1
    if open and tokens ~= '0' then
        try('HINCRBY', window, 't', tokens)
    end
    if lives == 1 and ARGV[i + 6] == '0' then
        change(live, 'n:' .. host, ARGV[i + 7])
        change(live, 'r:' .. host .. period, ARGV[i + 8])
        change(due, 'r:' .. host .. period, ARGV[i + 9])
        if open then
            change(window, 'r:' .. host, ARGV[i + 8])
        end
    end
    local grant = ARGV[i + 10]
    local function lives(name)
        return redis.call('EXISTS', prefix .. 'host:' .. name) == 1
    end
    -- One that is over is counted for a while after the ledger was away.
    if grant ~= '' and (lives(grant) or lives('spared')) then
        less(window, 'q:' .. grant, ARGV[i + 11])
        less(window, 'r:' .. grant, ARGV[i + 12])
        less(live, 'r:' .. grant .. period, ARGV[i + 12])
        less(due, 'r:' .. grant .. period, ARGV[i + 13])
    end
end
try('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
redis.call('SET', KEYS[1], number, 'EX', 604800)
return { lives, unpack(odd) }
