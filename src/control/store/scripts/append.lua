-- Appends a batch of rows as one entry, adds them to all sums, and ends their reservations. A batch has a number, so it
-- is applied once, however often it is sent. `try.lua` precedes it.
-- KEYS: 1 number of the writer's last batch, 2 rows, 3 days, 4 all windows by expiry.
-- ARGV: 1 prefix, 2 number of the batch, 3 host, 4 the rows as a JSON array, 5 number of the preceding batch in the
--       same pipeline (0: none). Then four lists, each after its length: increments (hash, field, amount), days, names
--       of groups, days with users or sessions. Then a JSON array of changes of windows and running requests, see
--       `HashChange` in `store/remote/commit.rs`.
-- Returns: 1 (done), 0 (done, but the host's lease has ended), 2 (was done before) or 3 (not done, since the preceding
--          batch was not), then the names of skipped counters.
local prefix, number, host = ARGV[1], ARGV[2], ARGV[3]
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
if last >= tonumber(number) then
    return { 2 }
elseif last < tonumber(ARGV[5]) then
    return { 3 }
end
local lives = redis.call('EXISTS', prefix .. 'host:' .. host)
local now = redis.call('TIME')[1] * 1000

-- Adds to fields of one hash; `changes` has each field and its amount. A field that an amount reduces to 0 is deleted.
-- Two commands serve all fields, since calling a command costs more than its work. Lua's numbers are exact up to 2^53;
-- if a number may exceed that, is not an integer, or occurs twice, Redis adds it. Returns the sums by field.
local function increase(hash, changes)
    local sums = {}
    for first = 1, #changes, 1000 do
        local fields, set, gone, rest = {}, {}, {}, {}
        for i = first, math.min(first + 999, #changes), 2 do
            fields[#fields + 1] = changes[i]
        end
        local had = #fields > 1 and try('HMGET', hash, unpack(fields))
        if #fields > 1 and not had then
            return sums
        end
        for i, field in ipairs(fields) do
            local more, was = changes[first + 2 * i - 1], had and (had[i] or '0')
            local number = was and #was < 16 and #more < 16 and tonumber(was)
            if not number or number % 1 ~= 0 or sums[field] then
                rest[#rest + 1], rest[#rest + 2] = field, more
            else
                local sum = number + more
                sums[field] = sum
                if sum <= 0 and more + 0 < 0 then
                    gone[#gone + 1] = field
                else
                    -- Redis writes an integer with all its digits.
                    set[#set + 1], set[#set + 2] = field, sum
                end
            end
        end
        if #set > 0 then
            try('HSET', hash, unpack(set))
        end
        if #gone > 0 then
            try('HDEL', hash, unpack(gone))
        end
        for i = 1, #rest, 2 do
            local sum = try('HINCRBY', hash, rest[i], rest[i + 1])
            sums[rest[i]] = sum or nil
            if sum and sum <= 0 and rest[i + 1] + 0 < 0 then
                redis.call('HDEL', hash, rest[i])
            end
        end
    end
    return sums
end

-- Keeps the largest users, sessions and agents of a day by name, and sums the others under the name "\1".
local function trim(hash)
    local fields, sums, lists = redis.call('HGETALL', hash), {}, { u = {}, s = {}, a = {} }
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
                    -- Lua's numbers are exact up to 2^53.
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

-- The first write. If the key of the rows has a wrong type, or memory is full, the script fails here and has changed
-- nothing. After a script's first write, Redis does not refuse its commands for lack of memory.
if ARGV[4] ~= '[]' then
    redis.call('XADD', KEYS[2], '*', 'rows', ARGV[4])
end
redis.call('SET', KEYS[1], number, 'EX', 604800)
written = true
local at = 6
-- Passes the list at `at` to `take`: its length, then as many times `each` values.
local function list(each, take)
    local behind = at + 1 + each * ARGV[at]
    for i = at + 1, behind - 1, each do
        take(ARGV[i], ARGV[i + 1], ARGV[i + 2])
    end
    at = behind
end
local names, changes = {}, {}
list(3, function(name, field, amount)
    local of = changes[name]
    if not of then
        of = {}
        changes[name], names[#names + 1] = of, name
    end
    of[#of + 1], of[#of + 2] = field, amount
end)
for _, name in ipairs(names) do
    increase(prefix .. name, changes[name])
end
list(1, function(day)
    try('ZADD', KEYS[3], day, day)
end)
list(1, function(group)
    try('SADD', prefix .. 'groups', group)
end)
list(1, function(day)
    local hash = prefix .. 'who:' .. day
    if (try('HLEN', hash) or 0) > 27000 then
        trim(hash)
    end
end)
for _, change in ipairs(cjson.decode(ARGV[at])) do
    local hash, requests, all = prefix .. change.hash, change.requests, {}
    local function put(list)
        for i = 1, #list do
            all[#all + 1] = list[i]
        end
    end
    put(change.always)
    -- Nothing else counts in a window that has passed.
    if change.kept == 0 or requests > 0 or redis.call('EXISTS', hash) == 1 then
        put(change.used)
        if lives == 1 then
            put(change.held)
        end
    end
    local sums = increase(hash, all)
    -- Last, since a hash without fields does not exist and cannot expire.
    if change.alone or requests > 0 and sums['1'] == requests then
        try('ZADD', KEYS[4], now + change.kept, hash)
        try('PEXPIRE', hash, change.kept)
    end
end
try('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
return { lives, unpack(odd) }
