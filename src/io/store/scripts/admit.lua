-- Admits one request with all of its accounts, its key and the groups above that, or with none, and says which limit
-- stands against it; atomic, like every script.
-- KEYS: 1 all windows by expiry, then for each account: what hosts hold of it, the same in money, its tokens by day, its
--       nano-dollars by day, its window
-- ARGV: 1 host, 2 prefix of host leases, 3 tokens to reserve, 4 nano-dollars to reserve, 5 "1" to admit, "0" to look,
--       then for each account: tokens per period, requests per window, tokens per window, requests at once, nano-dollars
--       per period, how long the window's counts are kept from now on (ms), start of the period (ms), its first day, its
--       days, end of the window (ms), end of the period (ms)
-- Returns: ruling (0 admitted, 1 period, 2 requests, 3 window, 4 at once, 5 looked, 6 money, 9 the host's lease has
--          ended), the account that refuses, then for each: requests in the window, tokens in the window, tokens in the
--          period, nano-dollars in the period, counted only for a budget
local host, admits = ARGV[1], ARGV[5] == '1'
local known = {}
local function lives(name)
    if known[name] == nil then
        known[name] = redis.call('EXISTS', ARGV[2] .. name) == 1
    end
    return known[name]
end

local function reached(limit, count)
    limit = tonumber(limit)
    return limit > 0 and count >= limit
end

-- What a host holds counts as long as the host's own lease does.
local function held(hash, period)
    local running, promised, all = 0, 0, redis.call('HGETALL', hash)
    for i = 1, #all, 2 do
        local kind, name, start = string.match(all[i], '^(%a):(%w+):?(%d*)$')
        if not lives(name) then
            redis.call('HDEL', hash, all[i])
        elseif kind == 'n' then
            running = running + tonumber(all[i + 1])
        elseif start == period then
            promised = promised + tonumber(all[i + 1])
        end
    end
    return running, promised
end

local function spent(hash, days)
    local sum = 0
    for _, part in ipairs(redis.call('HMGET', hash, unpack(days))) do
        if part then
            sum = sum + tonumber(part)
        end
    end
    return sum
end

local ruling, which, lasts, told = 0, 0, -1, {}
local count = (#KEYS - 1) / 5
for n = 0, count - 1 do
    local k, a = 2 + 5 * n, 6 + 11 * n
    local running, promised = held(KEYS[k], ARGV[a + 6])
    local requests, used, reserved = 0, 0, 0
    local window = redis.call('HGETALL', KEYS[k + 4])
    for i = 1, #window, 2 do
        local name, value = window[i], tonumber(window[i + 1])
        if name == 'q' then
            requests = value
        elseif name == 't' then
            used = value
        elseif lives(string.sub(name, 3)) then
            reserved = reserved + value
        end
    end
    local days, first = {}, tonumber(ARGV[a + 7])
    for day = first, first + tonumber(ARGV[a + 8]) - 1 do
        days[#days + 1] = string.format('%d', day)
    end
    local tokens, money, due, _ = spent(KEYS[k + 2], days), 0, 0, 0
    if ARGV[a + 4] ~= '0' then
        money = spent(KEYS[k + 3], days)
        _, due = held(KEYS[k + 1], ARGV[a + 6])
    end
    told[#told + 1], told[#told + 2], told[#told + 3], told[#told + 4] = requests, used, tokens, money
    if admits then
        local code, till = 0, 0
        if reached(ARGV[a], tokens + promised) then
            code, till = 1, tonumber(ARGV[a + 10])
        elseif reached(ARGV[a + 4], money + due) then
            code, till = 6, tonumber(ARGV[a + 10])
        elseif reached(ARGV[a + 1], requests) then
            code, till = 2, tonumber(ARGV[a + 9])
        elseif reached(ARGV[a + 2], used + reserved) then
            code, till = 3, tonumber(ARGV[a + 9])
        elseif reached(ARGV[a + 3], running) then
            code = 4
        end
        -- Of several the one that lasts longest is told.
        if code > 0 and till > lasts then
            ruling, which, lasts = code, n, till
        end
    end
end
if not admits then
    ruling = 5
elseif not lives(host) then
    ruling = 9
elseif ruling == 0 then
    local now
    for n = 0, count - 1 do
        local k, a = 2 + 5 * n, 6 + 11 * n
        redis.call('HINCRBY', KEYS[k], 'n:' .. host, 1)
        redis.call('HINCRBY', KEYS[k], 'r:' .. host .. ':' .. ARGV[a + 6], ARGV[3])
        if ARGV[4] ~= '0' then
            redis.call('HINCRBY', KEYS[k + 1], 'r:' .. host .. ':' .. ARGV[a + 6], ARGV[4])
        end
        local requests = redis.call('HINCRBY', KEYS[k + 4], 'q', 1)
        redis.call('HINCRBY', KEYS[k + 4], 'r:' .. host, ARGV[3])
        told[1 + 4 * n] = requests
        if requests == 1 then
            -- By this server's clock alone: one that a host has set differently must not make it forget.
            now = now or redis.call('TIME')[1] * 1000
            redis.call('PEXPIRE', KEYS[k + 4], ARGV[a + 5])
            redis.pcall('ZADD', KEYS[1], now + ARGV[a + 5], KEYS[k + 4])
        end
    end
end
return { ruling, which, unpack(told) }
