-- Folds the oldest rows into the sums of their days, entry by entry.
-- KEYS: 1 rows, 2 days with folded sums, 3 how often rows were folded
-- ARGV: 1 prefix, 2 rows appended before this (ms) are folded, 3 when so many have been it is enough
-- Returns: how many were
local most, count = tonumber(ARGV[3]), 0
while count < most do
    local entry = redis.call('XRANGE', KEYS[1], '-', '(' .. ARGV[2] .. '-0', 'COUNT', 1)[1]
    if not entry then
        break
    end
    -- An older host has written each row as an entry of its own.
    local rows, totals, adds = cjson.decode(entry[2][2]), {}, {}
    if entry[2][1] ~= 'rows' then
        rows = { rows }
    end
    for _, row in ipairs(rows) do
        local day = string.format('%d', math.floor(row.a / 86400000))
        local place = cjson.encode({ row.k, row.m, row.t, row.g or '', row.e, row.l or '' })
        local sums = { 1, row.u[1], row.u[2], row.u[3], row.u[4], row.n }
        for n = 1, 6 do
            if sums[n] > 0 then
                local name = day .. ':' .. (n - 1) .. place
                local add = totals[name]
                -- Numbers are exact up to 2^53 here.
                if not add or add[3] + sums[n] > 4503599627370496 then
                    add = { day, (n - 1) .. place, 0 }
                    totals[name], adds[#adds + 1] = add, add
                end
                add[3] = add[3] + sums[n]
            end
        end
    end
    for _, add in ipairs(adds) do
        -- What is not what it should be stops this here, before anything of the rows is changed.
        redis.call('ZADD', KEYS[2], add[1], add[1])
        redis.call('HLEN', ARGV[1] .. 'folded:' .. add[1])
    end
    for _, add in ipairs(adds) do
        redis.call('HINCRBY', ARGV[1] .. 'folded:' .. add[1], add[2], string.format('%.0f', add[3]))
    end
    redis.call('XDEL', KEYS[1], entry[1])
    count = count + #rows
end
if count > 0 then
    redis.call('INCR', KEYS[3])
end
return count
