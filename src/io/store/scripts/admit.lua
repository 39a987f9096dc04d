-- Admits one request or says which limit stands against it; atomic, like every script.
-- KEYS: 1 what hosts hold of this key, 2 its tokens by day, 3 its window, 4 all windows by expiry
-- ARGV: 1 host, 2 prefix of host leases, 3 tokens to reserve, 4 tokens per period, 5 requests per window,
--       6 tokens per window, 7 requests at once, 8 how long the window's counts are kept from now on (ms),
--       9 start of the period (ms), 10 its first day, 11 its days, 12 "1" to admit, "0" to look
-- Returns: ruling (0 admitted, 1 period, 2 requests, 3 window, 4 at once, 5 looked, 9 the host's lease has ended),
--          requests in the window, tokens in the window, tokens in the period
local host = ARGV[1]
local known = {}
local function lives(name)
    if known[name] == nil then
        known[name] = redis.call('EXISTS', ARGV[2] .. name) == 1
    end
    return known[name]
end

-- What a host holds counts as long as the host's own lease does.
local running, promised = 0, 0
local held = redis.call('HGETALL', KEYS[1])
for i = 1, #held, 2 do
    local kind, name, start = string.match(held[i], '^(%a):(%w+):?(%d*)$')
    if not lives(name) then
        redis.call('HDEL', KEYS[1], held[i])
    elseif kind == 'n' then
        running = running + tonumber(held[i + 1])
    elseif start == ARGV[9] then
        promised = promised + tonumber(held[i + 1])
    end
end

local requests, used, reserved = 0, 0, 0
local window = redis.call('HGETALL', KEYS[3])
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

local days, spent = {}, 0
local first = tonumber(ARGV[10])
for day = first, first + tonumber(ARGV[11]) - 1 do
    days[#days + 1] = string.format('%d', day)
end
for _, tokens in ipairs(redis.call('HMGET', KEYS[2], unpack(days))) do
    if tokens then
        spent = spent + tonumber(tokens)
    end
end

local function reached(limit, count)
    limit = tonumber(limit)
    return limit > 0 and count >= limit
end
local ruling = 0
if ARGV[12] == '0' then
    ruling = 5
elseif not lives(host) then
    ruling = 9
elseif reached(ARGV[4], spent + promised) then
    ruling = 1
elseif reached(ARGV[5], requests) then
    ruling = 2
elseif reached(ARGV[6], used + reserved) then
    ruling = 3
elseif reached(ARGV[7], running) then
    ruling = 4
else
    redis.call('HINCRBY', KEYS[1], 'n:' .. host, 1)
    redis.call('HINCRBY', KEYS[1], 'r:' .. host .. ':' .. ARGV[9], ARGV[3])
    requests = redis.call('HINCRBY', KEYS[3], 'q', 1)
    redis.call('HINCRBY', KEYS[3], 'r:' .. host, ARGV[3])
    if requests == 1 then
        -- By this server's clock alone: one that a host has set differently must not make it forget.
        local clock = redis.call('TIME')
        redis.call('PEXPIRE', KEYS[3], ARGV[8])
        redis.pcall('ZADD', KEYS[4], clock[1] * 1000 + ARGV[8], KEYS[3])
    end
end
return { ruling, requests, used, spent }
