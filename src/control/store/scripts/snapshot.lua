-- Reads all counters at one moment, to compare them with the rows.
-- KEYS: 1 rows, 2 days, 3 days with folded sums, 4 number of times that rows were folded, 5 keys, 6 all windows by
--       expiry, 7 names of groups.
-- ARGV: 1 prefix.
-- Returns: id of the last row ("": none); number of times that rows were folded; then lists of {name, fields and
--          values}: days, folded days, tokens by day of keys and groups, their nano-dollars by day, windows, days by
--          user and session; and the names of keys of a wrong type.
local prefix, wrong = ARGV[1], {}
-- True if a key has this type, by Redis's name of it, or does not exist.
local function is(name, kind)
    local found = redis.call('TYPE', name).ok
    if found == kind or found == 'none' then
        return true
    end
    wrong[#wrong + 1] = name
    return false
end
local function read(kind, name, command, ...)
    return is(name, kind) and redis.call(command, name, ...) or {}
end
local last = read('stream', KEYS[1], 'XREVRANGE', '+', '-', 'COUNT', 1)
local function hashes(names, before)
    local all = {}
    for _, name in ipairs(names) do
        all[#all + 1] = { name, read('hash', before .. name, 'HGETALL') }
    end
    return all
end
local accounts, known, strange = {}, {}, {}
for _, kind in ipairs({ read('hash', KEYS[5], 'HKEYS'), read('set', KEYS[7], 'SMEMBERS') }) do
    for _, name in ipairs(kind) do
        accounts[#accounts + 1], known[name] = name, true
    end
end
local names = read('zset', KEYS[2], 'ZRANGE', 0, -1)
local days = hashes(names, prefix .. 'day:')
-- An unknown key can have rows: gateways reported them to a new ledger that replaced the one that had admitted them.
for _, day in ipairs(days) do
    for i = 1, #day[2], 2 do
        local key = string.match(day[2][i], '^%d%["(%w+)"')
        if key and not known[key] then
            accounts[#accounts + 1], known[key], strange[key] = key, true, true
        end
    end
end
local windows = {}
for _, name in ipairs(read('zset', KEYS[6], 'ZRANGE', 0, -1)) do
    -- Attempts at targets, which "\1" marks, have no rows.
    if not strange[string.match(name, 'win:(%w+)/')] and not string.find(name, '\1', 1, true) then
        windows[#windows + 1] = name
    end
end
for _, name in ipairs(accounts) do
    is(prefix .. 'live:' .. name, 'hash')
end
is(KEYS[4], 'string')
return {
    last[1] and last[1][1] or '',
    tonumber(redis.pcall('GET', KEYS[4]) or '0') or 0,
    days,
    hashes(read('zset', KEYS[3], 'ZRANGE', 0, -1), prefix .. 'folded:'),
    hashes(accounts, prefix .. 'use:'),
    hashes(accounts, prefix .. 'cost:'),
    hashes(windows, ''),
    hashes(names, prefix .. 'who:'),
    wrong,
}
