-- Admits one request in all of its accounts (its key and the groups above the key) or in none, and returns the limit
-- that refuses it. Atomic, like every script. May grant its host further requests of the same key.
-- KEYS: the set of all windows by their expiry, then the keys of each account (see `account`).
-- ARGV: the values read from `host` to `late`, then the values of each account (see `account`).
-- `store/remote/code.rs` defines variables before this script: LIMITS, the names of the limits in the order of their
-- values; RULING, the ruling for each limit that may refuse a request; and the other rulings: ADMITTED, LOOKED (the
-- host only asked for counts), CALLED (other hosts were asked to return their grants), LATE, ENDED (the host's lease
-- has ended).
-- Returns: ruling; index of the account that refuses; 1 if its limit is reached only by reservations; 1 if there is a
--          grant; the grant's requests, tokens and nano-dollars; then for each account the requests and the tokens of
--          the window, and the tokens and nano-dollars of the period (0 nano-dollars without a budget).
local host, host_prefix, tokens_wanted, nano_wanted = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
-- False if the host only asks for counts.
local admits = ARGV[5] == '1'
-- Name of the grant ('' for none), its duration (ms), and the divisor of what is left: a grant is at most one such
-- part.
local grant, grant_lasts, grant_parts = ARGV[6], ARGV[7], tonumber(ARGV[8])
local grant_wanted = { requests = tonumber(ARGV[9]), tokens = tonumber(ARGV[10]), nano = tonumber(ARGV[11]) }
-- True if other hosts are to return their grants before a request is refused; the channel that asks them.
local calls_in, calls_channel = ARGV[12] == '1', ARGV[13]
-- True if the host has this grant already and wants more.
local enlarges = ARGV[14] == '1'
-- Time after which this script must not run any more (ms).
local late = tonumber(ARGV[15])

local ALL_WINDOWS, KEYS_BEFORE, KEYS_EACH = KEYS[1], 1, 5
local ARGS_BEFORE, ARGS_EACH = 15, #LIMITS + 6
local COUNTS_EACH = 4

-- Reads account `n`, the key of the request (0) or a group above it. Its keys are: reservations of hosts in tokens, the
-- same in money, tokens by day, nano-dollars by day, counts of the window. Its values are: the limits in the order of
-- LIMITS; for how long the window's counts are kept (ms); the period's start (ms), first day and number of days; the
-- end of the window and of the period (ms).
local function account(n)
    local k, a = KEYS_BEFORE + KEYS_EACH * n, ARGS_BEFORE + ARGS_EACH * n
    local own = { live = KEYS[k + 1], due = KEYS[k + 2], use = KEYS[k + 3], cost = KEYS[k + 4], window = KEYS[k + 5] }
    for i, name in ipairs(LIMITS) do
        own[name] = tonumber(ARGV[a + i])
    end
    a = a + #LIMITS
    own.kept, own.period = ARGV[a + 1], ARGV[a + 2]
    own.first_day, own.days = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
    own.window_ends, own.period_ends = tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6])
    return own
end

-- Only this server's clock is used: a host with a wrong clock must not make counts expire.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- If the server was delayed, grants may have ended before their hosts could report their use. So a late script changes
-- nothing, and its host sends it again.
if now > late then
    return { LATE, 0, 0, 0, 0, 0, 0 }
end
local known = {}
local function lives(name)
    if known[name] == nil then
        known[name] = redis.call('EXISTS', host_prefix .. name) == 1
    end
    return known[name]
end

-- The name of a grant contains a "g"; the name of a host has only hexadecimal digits.
local function granted(name)
    return string.find(name, 'g', 1, true) ~= nil
end

-- True if a reservation of this host or grant still counts. After an outage of the ledger, a grant counts beyond its
-- end until its host has reconnected and reported the use of all grants up to this one's number.
local spared = {}
local function holds(name)
    if lives(name) or not granted(name) or not lives('spared') then
        return lives(name)
    end
    if spared[name] == nil then
        local writer, number = string.match(name, '^(%x+)g(%d+)$')
        spared[name] = tonumber(redis.call('GET', host_prefix .. (writer or '')) or '0') < tonumber(number or '0')
    end
    return spared[name]
end

-- True if requests that this script admitted for a host, and that the host has not confirmed, still count: during the
-- host's lease, and after an outage of the ledger until the host has returned under another name.
local function asked(name)
    return lives(name) or lives('spared') and not lives(name .. 'o')
end

-- Reads a counter. Redis could not add to a value that is not an integer in its own notation, so such a counter admits
-- no request.
local function number(text)
    if text ~= '0' and not string.find(text, '^%-?[1-9]%d*$') then
        error('a counter is not an integer')
    end
    return tonumber(text)
end

-- Sums the reservations of one account: running requests, reserved tokens or nano-dollars, and the granted part of
-- these. Those of a host count during its lease, those of a grant during the grant.
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

-- For each kind of limit, the least that an account has left; infinite if no account has such a limit.
local left = { requests = math.huge, tokens = math.huge, nano = math.huge }
local ruling, which, waits, lasts, counts, is_used_up, calls = ADMITTED, 0, 0, -1, {}, false, {}
local accounts = {}
for n = 0, (#KEYS - KEYS_BEFORE) / KEYS_EACH - 1 do
    accounts[#accounts + 1] = account(n)
end
for at, own in ipairs(accounts) do
    local running, promised, lent = held(own.live, own.period)
    local requests, used, reserved, requests_lent, reserved_lent, doubt = 0, 0, 0, 0, 0, 0
    local window = redis.call('HGETALL', own.window)
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
                    redis.call('HDEL', own.window, name)
                end
            elseif not holds(of) then
                redis.call('HDEL', own.window, name)
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
    local days = {}
    for day = own.first_day, own.first_day + own.days - 1 do
        days[#days + 1] = string.format('%d', day)
    end
    local tokens, money, due, due_lent, _ = spent(own.use, days), 0, 0, 0, 0
    if own.budget ~= 0 then
        money = spent(own.cost, days)
        _, due, due_lent = held(own.due, own.period)
    end
    -- A host that learns that a limit is reached does not ask again in this window. So requests that may still not
    -- count in the end are not reported as the last ones.
    local sure = requests
    if requests >= own.requests and requests - doubt < own.requests then
        sure = own.requests - 1
    end
    counts[#counts + 1], counts[#counts + 2], counts[#counts + 3], counts[#counts + 4] = sure, used, tokens, money
    -- Checks one limit, and whether reservations or grants alone reach it. If several limits are reached, the one that
    -- lasts longest is reported; reservations may end at any moment.
    local function reached(name, count, held, lent, what, ends)
        local limit = own[name]
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
            is_used_up = true
        else
            calls[own.live] = true
        end
        local reserved = count - held < limit and 1 or 0
        local till = reserved == 1 and 0 or ends
        if admits and till > lasts then
            ruling, which, waits, lasts = RULING[name], at - 1, reserved, till
        end
    end
    reached('tokens', tokens + promised, promised, lent, 'tokens', own.period_ends)
    reached('budget', money + due, due, due_lent, 'nano', own.period_ends)
    reached('requests', requests + requests_lent, 0, requests_lent, 'requests', own.window_ends)
    reached('tokens_per_window', used + reserved, reserved, reserved_lent, 'tokens', own.window_ends)
    reached('concurrency', running, 0, 0, nil, 0)
end
if not admits then
    ruling = LOOKED
elseif ruling ~= ADMITTED and not is_used_up and calls_in then
    ruling = CALLED
    for name in pairs(calls) do
        -- If the message cannot be sent, or reaches no host, the grants end by themselves.
        if redis.call('SET', calls_channel .. ':' .. name, '1', 'PX', 5, 'NX') then
            redis.pcall('PUBLISH', calls_channel, name)
        end
    end
end
if (admits or grant ~= '') and not lives(host) then
    ruling = ENDED
end
local function keep(own)
    redis.call('PEXPIRE', own.window, own.kept)
    redis.pcall('ZADD', ALL_WINDOWS, now + own.kept, own.window)
end
local function lend(own, name, tokens, nano)
    if tokens ~= 0 then
        redis.call('HINCRBY', own.live, 'r:' .. name .. ':' .. own.period, tokens)
        redis.call('HINCRBY', own.window, 'r:' .. name, tokens)
    end
    if nano ~= 0 then
        redis.call('HINCRBY', own.due, 'r:' .. name .. ':' .. own.period, nano)
    end
end
if ruling == ADMITTED then
    for at, own in ipairs(accounts) do
        redis.call('HINCRBY', own.live, 'n:' .. host, 1)
        -- The request counts under the host's name until the host confirms that it continues it.
        redis.call('HINCRBY', own.window, 'q:' .. host, 1)
        lend(own, host, tokens_wanted, nano_wanted)
        local requests = 1 + COUNTS_EACH * (at - 1)
        counts[requests] = counts[requests] + 1
        if counts[requests] == 1 then
            keep(own)
        end
    end
    left.requests, left.tokens, left.nano = left.requests - 1, left.tokens - tokens_wanted, left.nano - nano_wanted
end

-- A grant is at most a part of what is left of each limit. Without a limit it is 2^53 - 1, and nothing is reserved.
local UNLIMITED = 9007199254740991
local gives, amounts = 0, { requests = 0, tokens = 0, nano = 0 }
-- A grant that has ended is not enlarged, since its remainder may have been given to another host.
if grant ~= '' and (ruling == ADMITTED or ruling == LOOKED) and (not enlarges or lives(grant)) then
    local holds = { requests = 0, tokens = 0, nano = 0 }
    gives = 1
    for _, what in ipairs({ 'requests', 'tokens', 'nano' }) do
        amounts[what] = UNLIMITED
        if left[what] < math.huge then
            amounts[what] = math.max(math.min(grant_wanted[what], math.floor(left[what] / grant_parts)), 0)
            holds[what] = amounts[what]
        end
        if amounts[what] < grant_wanted[what] / grant_wanted.requests or amounts.requests == 0 then
            gives = 0
        end
    end
    if gives == 1 then
        for _, own in ipairs(accounts) do
            if holds.requests > 0 then
                redis.call('HINCRBY', own.window, 'q:' .. grant, holds.requests)
            end
            lend(own, grant, holds.tokens, holds.nano)
            keep(own)
        end
        redis.call('SET', host_prefix .. grant, '1', 'PX', grant_lasts)
    end
end
return { ruling, which, waits, gives, amounts.requests, amounts.tokens, amounts.nano, unpack(counts) }
