-- Every counter as of one moment, for a comparison with the rows up to then.
-- KEYS: 1 rows, 2 days, 3 days with folded sums, 4 how often rows were folded, 5 keys, 6 all windows by expiry, 7 names of groups
-- ARGV: 1 prefix
-- Returns: id of the last row or "", how often rows were folded, then lists of {name, fields and values}: days,
--          folded days, tokens by day of keys and groups, their nano-dollars by day, windows, days by user and session
local prefix = ARGV[1]
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local function hashes(names, before)
    local all = {}
    for _, name in ipairs(names) do
        all[#all + 1] = { name, redis.call('HGETALL', before .. name) }
    end
    return all
end
local accounts, known, strange = {}, {}, {}
for _, kind in ipairs({ redis.call('HKEYS', KEYS[5]), redis.call('SMEMBERS', KEYS[7]) }) do
    for _, name in ipairs(kind) do
        accounts[#accounts + 1], known[name] = name, true
    end
end
local days = hashes(redis.call('ZRANGE', KEYS[2], 0, -1), prefix .. 'day:')
-- An unknown key has rows if gateways still had to report them when they took over a ledger that was reset; the
-- requests were admitted by the one before.
for _, day in ipairs(days) do
    for i = 1, #day[2], 2 do
        local key = string.match(day[2][i], '^%d%["(%w+)"')
        if key and not known[key] then
            accounts[#accounts + 1], known[key], strange[key] = key, true, true
        end
    end
end
local windows = {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[6], 0, -1)) do
    if not strange[string.match(name, 'win:(%w+):%d+:%d+$')] then
        windows[#windows + 1] = name
    end
end
return {
    last[1] and last[1][1] or '',
    tonumber(redis.call('GET', KEYS[4]) or '0'),
    days,
    hashes(redis.call('ZRANGE', KEYS[3], 0, -1), prefix .. 'folded:'),
    hashes(accounts, prefix .. 'use:'),
    hashes(accounts, prefix .. 'cost:'),
    hashes(windows, ''),
    hashes(redis.call('ZRANGE', KEYS[2], 0, -1), prefix .. 'who:'),
}
