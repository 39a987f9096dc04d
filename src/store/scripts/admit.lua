-- Admits one request with all of its accounts, its key and the groups above that, or with none, and says which limit
-- stands against it; atomic, like every script. May grant its host further requests of the same key.
-- KEYS: 1 all windows by expiry, then for each account: what hosts hold of it, the same in money, its tokens by day, its
--       nano-dollars by day, its window
-- ARGV: 1 host, 2 prefix of host leases, 3 tokens to reserve, 4 nano-dollars to reserve, 5 "1" to admit, "0" to look,
--       6 name of the grant, "" for none, 7 how long that lasts (ms), 8 at most one of so many parts of what is left,
--       9 requests, 10 tokens, 11 nano-dollars wanted, 12 "1" to call in what others were granted instead of refusing,
--       13 where that is called out, 14 "1" if the grant is known and is to be enlarged, 15 when this is too late (ms), then
--       for each account: tokens per period, requests per window, tokens per window, requests at once, nano-dollars per period, how long the window's
--       counts are kept from now on (ms), start of the period (ms), its first day, its days, end of the window (ms), end
--       of the period (ms)
-- Returns: ruling (0 admitted, 1 period, 2 requests, 3 window, 4 at once, 5 looked, 6 money, 7 called in, 8 too late,
--          9 the host's lease has ended), the account that refuses, 1 if it is not spent but reserved, 1 if something is granted,
--          requests, tokens, nano-dollars of it, then for each account: requests in the window, tokens in the window, tokens in the period, nano-dollars in the
--          period, counted only for a budget
local host, admits, grant = ARGV[1], ARGV[5] == '1', ARGV[6]
-- By this server's clock alone: one that a host has set differently must not make it forget.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- A question that the server comes to late may find grants ended whose hosts could not report their use meanwhile. It
-- changes nothing; its host asks again.
if now > tonumber(ARGV[15]) then
    return { 8, 0, 0, 0, 0, 0, 0 }
end
local known = {}
local function lives(name)
    if known[name] == nil then
        known[name] = redis.call('EXISTS', ARGV[2] .. name) == 1
    end
    return known[name]
end

-- The name of a grant has a "g" in it, that of a host has hexadecimal digits alone.
local function granted(name)
    return string.find(name, 'g', 1, true) ~= nil
end

-- After the ledger was away what was granted counts beyond its time, until its host has come back and told what it has
-- used of all grants up to a number.
local spared = {}
local function holds(name)
    if lives(name) or not granted(name) or not lives('spared') then
        return lives(name)
    end
    if spared[name] == nil then
        local writer, number = string.match(name, '^(%x+)g(%d+)$')
        spared[name] = tonumber(redis.call('GET', ARGV[2] .. (writer or '')) or '0') < tonumber(number or '0')
    end
    return spared[name]
end

-- What a host was admitted by questions, and has not confirmed: it counts as long as the host's own lease does, and after
-- the ledger was away until the host has come back under another name.
local function asked(name)
    return lives(name) or lives('spared') and not lives(name .. 'o')
end

-- What is counted is a whole number as the server writes it. By anything else, which nothing could be added to either,
-- nobody is admitted.
local function number(text)
    if text ~= '0' and not string.find(text, '^%-?[1-9]%d*$') then
        error('what is counted is not an integer')
    end
    return tonumber(text)
end

-- What a host holds counts as long as the host's own lease does, what was granted as long as the grant's.
local function held(hash, period)
    local running, promised, lent, all = 0, 0, 0, redis.call('HGETALL', hash)
    for i = 1, #all, 2 do
        local kind, name, start = string.match(all[i], '^(%a):(%w+):?(%d*)$')
        if not holds(name) then
            redis.call('HDEL', hash, all[i])
        elseif kind == 'n' then
            running = running + number(all[i + 1])
        elseif start == period then
            promised = promised + number(all[i + 1])
            if granted(name) then
                lent = lent + number(all[i + 1])
            end
        end
    end
    return running, promised, lent
end

local function spent(hash, days)
    local sum = 0
    for _, part in ipairs(redis.call('HMGET', hash, unpack(days))) do
        if part then
            sum = sum + number(part)
        end
    end
    return sum
end

-- What is left of each limit at the account that has the least left of it; without end where there is none.
local left = { requests = math.huge, tokens = math.huge, nano = math.huge }
local ruling, which, waits, lasts, told, stands, calls = 0, 0, 0, -1, {}, false, {}
local count = (#KEYS - 1) / 5
for n = 0, count - 1 do
    local k, a = 2 + 5 * n, 16 + 11 * n
    local running, promised, lent = held(KEYS[k], ARGV[a + 6])
    local requests, used, reserved, requests_lent, reserved_lent, doubt = 0, 0, 0, 0, 0, 0
    local window = redis.call('HGETALL', KEYS[k + 4])
    for i = 1, #window, 2 do
        local name, value = window[i], number(window[i + 1])
        if name == 'q' then
            requests = requests + value
        elseif name == 't' then
            used = value
        else
            local of, asks = string.sub(name, 3), string.sub(name, 1, 1) == 'q'
            if asks and not granted(of) then
                if asked(of) then
                    requests, doubt = requests + value, doubt + value
                else
                    redis.call('HDEL', KEYS[k + 4], name)
                end
            elseif not holds(of) then
                redis.call('HDEL', KEYS[k + 4], name)
            elseif asks then
                requests_lent = requests_lent + value
            else
                reserved = reserved + value
                if granted(of) then
                    reserved_lent = reserved_lent + value
                end
            end
        end
    end
    local days, first = {}, tonumber(ARGV[a + 7])
    for day = first, first + tonumber(ARGV[a + 8]) - 1 do
        days[#days + 1] = string.format('%d', day)
    end
    local tokens, money, due, due_lent, _ = spent(KEYS[k + 2], days), 0, 0, 0, 0
    if ARGV[a + 4] ~= '0' then
        money = spent(KEYS[k + 3], days)
        _, due, due_lent = held(KEYS[k + 1], ARGV[a + 6])
    end
    -- A host that is told that a limit is reached does not ask again in this window. So that is not told of requests that
    -- may still not count in the end.
    local most, sure = tonumber(ARGV[a + 1]), requests
    if requests >= most and requests - doubt < most then
        sure = most - 1
    end
    told[#told + 1], told[#told + 2], told[#told + 3], told[#told + 4] = sure, used, tokens, money
    -- One limit: whether it is reached, and whether only by what is reserved, or only by what was granted. Of several
    -- the one that lasts longest is reported; what is reserved may be free at any moment.
    local function reached(limit, count, held, lent, what, number, ends)
        limit = tonumber(limit)
        if limit == 0 then
            return
        end
        if what then
            left[what] = math.min(left[what], limit - count)
        end
        if count < limit then
            return
        end
        if count - lent >= limit then
            stands = true
        else
            calls[KEYS[k]] = true
        end
        local reserved = count - held < limit and 1 or 0
        local till = reserved == 1 and 0 or tonumber(ends)
        if admits and till > lasts then
            ruling, which, waits, lasts = number, n, reserved, till
        end
    end
    reached(ARGV[a], tokens + promised, promised, lent, 'tokens', 1, ARGV[a + 10])
    reached(ARGV[a + 4], money + due, due, due_lent, 'nano', 6, ARGV[a + 10])
    reached(ARGV[a + 1], requests + requests_lent, 0, requests_lent, 'requests', 2, ARGV[a + 9])
    reached(ARGV[a + 2], used + reserved, reserved, reserved_lent, 'tokens', 3, ARGV[a + 9])
    reached(ARGV[a + 3], running, 0, 0, nil, 4, 0)
end
if not admits then
    ruling = 5
elseif ruling > 0 and not stands and ARGV[12] == '1' then
    ruling = 7
    for name in pairs(calls) do
        -- A message that nobody may send, or hear, is one that nobody follows: then what was granted ends by itself.
        if redis.call('SET', ARGV[13] .. ':' .. name, '1', 'PX', 5, 'NX') then
            redis.pcall('PUBLISH', ARGV[13], name)
        end
    end
end
if (admits or grant ~= '') and not lives(host) then
    ruling = 9
end
local function keep(k, a)
    redis.call('PEXPIRE', KEYS[k + 4], ARGV[a + 5])
    redis.pcall('ZADD', KEYS[1], now + ARGV[a + 5], KEYS[k + 4])
end
local function lend(k, a, name, tokens, nano)
    if tokens ~= 0 then
        redis.call('HINCRBY', KEYS[k], 'r:' .. name .. ':' .. ARGV[a + 6], tokens)
        redis.call('HINCRBY', KEYS[k + 4], 'r:' .. name, tokens)
    end
    if nano ~= 0 then
        redis.call('HINCRBY', KEYS[k + 1], 'r:' .. name .. ':' .. ARGV[a + 6], nano)
    end
end
if ruling == 0 then
    for n = 0, count - 1 do
        local k, a = 2 + 5 * n, 16 + 11 * n
        redis.call('HINCRBY', KEYS[k], 'n:' .. host, 1)
        -- It counts under the host's name until the host confirms that it goes on with the request.
        redis.call('HINCRBY', KEYS[k + 4], 'q:' .. host, 1)
        lend(k, a, host, tonumber(ARGV[3]), tonumber(ARGV[4]))
        told[1 + 4 * n] = told[1 + 4 * n] + 1
        if told[1 + 4 * n] == 1 then
            keep(k, a)
        end
    end
    left.requests, left.tokens = left.requests - 1, left.tokens - ARGV[3]
    left.nano = left.nano - ARGV[4]
end

-- What is granted: of each limit at most a part of what is left; of what has no limit 2^53 - 1, and nothing is held.
local gives, amounts = 0, { 0, 0, 0 }
-- One that has ended is not enlarged: what was left of it may be another's by now.
if grant ~= '' and (ruling == 0 or ruling == 5) and (ARGV[14] == '0' or lives(grant)) then
    local part, holds = tonumber(ARGV[8]), { 0, 0, 0 }
    gives = 1
    for i, what in ipairs({ 'requests', 'tokens', 'nano' }) do
        amounts[i] = 9007199254740991
        if left[what] < math.huge then
            amounts[i] = math.max(math.min(tonumber(ARGV[8 + i]), math.floor(left[what] / part)), 0)
            holds[i] = amounts[i]
        end
        if amounts[i] < ARGV[8 + i] / ARGV[9] or amounts[1] == 0 then
            gives = 0
        end
    end
    if gives == 1 then
        for n = 0, count - 1 do
            local k, a = 2 + 5 * n, 16 + 11 * n
            if holds[1] > 0 then
                redis.call('HINCRBY', KEYS[k + 4], 'q:' .. grant, holds[1])
            end
            lend(k, a, grant, holds[2], holds[3])
            keep(k, a)
        end
        redis.call('SET', ARGV[2] .. grant, '1', 'PX', ARGV[7])
    end
end
return { ruling, which, waits, gives, amounts[1], amounts[2], amounts[3], unpack(told) }
