-- Admits one request in all parts of its lease or in none, and returns the limit that refuses it. A part is a window or
-- a period of its key or of a group above it. Atomic, like every script. May grant its host further requests of the
-- same key.
-- KEYS: the set of all windows by their expiry.
-- ARGV: the question in JSON; see `ask_command` in `store/remote/commands.rs`.
-- The hash of a part has a counter for each resource, under its number. "<number>:<name>" is what a host or a grant
-- holds of it: requests of the host that it has not confirmed, or reservations. Of the first resource nothing is
-- reserved: it is used at the admission.
-- `store/remote/code.rs` defines variables before this script: ADMITTED; REFUSED; LESS (the least reservation fits, the
-- whole one does not); LOOKED (the host only asked for
-- counts); CALLED (other hosts were asked to return their grants); LATE; ENDED (the host's lease has ended).
-- Returns: ruling; index of the part that refuses, and number of the resource; 1 if its limit is reached only by
--          reservations; 1 if there is a grant; the amount of each resource that the grant has, or that is left if the
--          ruling is LESS; then the counts of each part.
local ask = cjson.decode(ARGV[1])
local host, grant = ask.host, ask.grant
-- Only this server's clock is used: a host with a wrong clock must not make counts expire.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- If the server was delayed, grants may have ended before their hosts could report their use. So a late script changes
-- nothing, and its host sends it again.
if now > ask.late then
    return { LATE, 0, 0, 0, 0, 0, 0, 0 }
end
local known = {}
local function lives(name)
    if known[name] == nil then
        known[name] = redis.call('EXISTS', ask.host_prefix .. name) == 1
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
        spared[name] = tonumber(redis.call('GET', ask.host_prefix .. (writer or '')) or '0') < tonumber(number or '0')
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

-- Passes each counter of a hash to `take`, without those of hosts and grants that have ended: number of the resource,
-- name of the host or grant ('' for none) and value.
local function each(hash, take)
    local all = redis.call('HGETALL', hash)
    for i = 1, #all, 2 do
        local what, name = string.match(all[i], '^(%d):?(%w*)$')
        local value = what and number(all[i + 1])
        local counts = not what or name == '' or (what == '1' and not granted(name) and asked or holds)(name)
        if not counts then
            redis.call('HDEL', hash, all[i])
        elseif what then
            take(tonumber(what), name, value)
        end
    end
end

-- Sums days of one hash.
local function spent(hash, first, count)
    local days, sum = {}, 0
    for day = first, first + count - 1 do
        days[#days + 1] = string.format('%d', day)
    end
    for _, part in ipairs(redis.call('HMGET', hash, unpack(days))) do
        if part then
            sum = sum + number(part)
        end
    end
    return sum
end

-- The least that a limit of each resource leaves; infinite if there is no limit.
local left = { math.huge, math.huge, math.huge }
local ruling, which, what, by, lasts, counts, is_used_up, calls = ADMITTED, 0, 0, 0, -1, {}, false, {}
local is_short = false
-- A limit is reached. If several are, the one that lasts longest is reported; reservations may end at any moment.
local function refuse(part, resource, reserved, ends)
    local till = reserved == 1 and 0 or ends
    if ask.admits and till > lasts then
        ruling, which, what, by, lasts = REFUSED, part, resource, reserved, till
    end
end
for at, part in ipairs(ask.parts) do
    local used, held, lent, doubt = { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 }, 0
    each(part.hash, function(resource, name, value)
        if name == '' then
            used[resource] = used[resource] + value
        elseif granted(name) then
            held[resource], lent[resource] = held[resource] + value, lent[resource] + value
        elseif resource == 1 then
            used[1], doubt = used[1] + value, doubt + value
        else
            held[resource] = held[resource] + value
        end
    end)
    for resource, days in ipairs(part.days) do
        if days ~= '' then
            used[resource] = spent(days, part.first_day, part.day_count)
        end
    end
    for resource, limit in ipairs(part.limits) do
        local count, told = used[resource] + held[resource], used[resource]
        -- A strict limit must have room for the whole reservation, or the host asks again with a smaller one.
        local need = ask.least and math.max(ask.least[resource], 1) or 1
        if ask.least and limit > 0 and count + ask.reserved[resource] > limit then
            is_short = true
        end
        if limit > 0 then
            left[resource] = math.min(left[resource], limit - count)
        end
        if limit > 0 and count + need > limit then
            if count - lent[resource] + need > limit then
                is_used_up = true
            else
                calls[part.account] = true
            end
            local reserved = resource ~= 1 and used[resource] + need <= limit and 1 or 0
            refuse(at - 1, resource, reserved, part.ends)
        end
        -- A host that learns that a limit is reached does not ask again in this window. So requests that may still not
        -- count in the end are not reported as the last ones.
        if resource == 1 and told >= limit and told - doubt < limit then
            told = limit - 1
        end
        counts[#counts + 1] = told
    end
end
for _, run in ipairs(ask.running) do
    local running = 0
    each(run.hash, function(_, _, value)
        running = running + value
    end)
    if run.limit > 0 and running >= run.limit then
        is_used_up = true
        refuse(run.part, 4, 0, 0)
    end
end
if not ask.admits then
    ruling = LOOKED
elseif ruling ~= ADMITTED and not is_used_up and ask.calls then
    ruling = CALLED
    for name in pairs(calls) do
        -- If the message cannot be sent, or reaches no host, the grants end by themselves.
        if redis.call('SET', ask.channel .. ':' .. name, '1', 'PX', 5, 'NX') then
            redis.pcall('PUBLISH', ask.channel, name)
        end
    end
end
if (ask.admits or grant ~= '') and not lives(host) then
    ruling = ENDED
end
if ruling == ADMITTED and is_short then
    ruling = LESS
end
local function keep(part)
    redis.call('PEXPIRE', part.hash, part.kept)
    redis.pcall('ZADD', KEYS[1], now + part.kept, part.hash)
end
local function hold(part, name, amounts)
    for resource, amount in ipairs(amounts) do
        if amount ~= 0 then
            redis.call('HINCRBY', part.hash, resource .. ':' .. name, amount)
        end
    end
end
if ruling == ADMITTED then
    for at, part in ipairs(ask.parts) do
        -- The request counts under the host's name until the host confirms that it continues it.
        hold(part, host, ask.reserved)
        local requests = 1 + #part.limits * (at - 1)
        counts[requests] = counts[requests] + 1
        if counts[requests] == 1 then
            keep(part)
        end
    end
    for _, run in ipairs(ask.running) do
        redis.call('HINCRBY', run.hash, '4:' .. host, 1)
    end
    for resource, amount in ipairs(ask.reserved) do
        left[resource] = left[resource] - amount
    end
end

-- A grant is at most a part of what is left of each limit. Without a limit it is 2^53 - 1, and nothing is reserved.
local UNLIMITED = 9007199254740991
local gives, amounts, reserves = 0, { 0, 0, 0 }, { 0, 0, 0 }
-- A grant that has ended is not enlarged, since its remainder may have been given to another host.
if grant ~= '' and (ruling == ADMITTED or ruling == LOOKED) and (not ask.enlarges or lives(grant)) then
    gives = 1
    for resource, wanted in ipairs(ask.wanted) do
        amounts[resource] = UNLIMITED
        if left[resource] < math.huge then
            amounts[resource] = math.max(math.min(wanted, math.floor(left[resource] / ask.grant_parts)), 0)
            reserves[resource] = amounts[resource]
        end
        if amounts[resource] < wanted / ask.wanted[1] or amounts[1] == 0 then
            gives = 0
        end
    end
    if gives == 1 then
        for _, part in ipairs(ask.parts) do
            hold(part, grant, reserves)
            keep(part)
        end
        redis.call('SET', ask.host_prefix .. grant, '1', 'PX', ask.grant_lasts)
    end
end
if ruling == LESS then
    for resource, most in ipairs(left) do
        amounts[resource] = math.floor(math.max(math.min(most, UNLIMITED), 0))
    end
end
return { ruling, which, what, by, gives, amounts[1], amounts[2], amounts[3], unpack(counts) }
