-- Folds the oldest rows into the sums of their days, entry by entry.
-- KEYS: 1 rows, 2 days with folded sums, 3 number of times that rows were folded.
-- ARGV: 1 prefix, 2 end of the rows to fold (ms), 3 number of rows after which the script ends.
-- Returns: the number of folded rows.
local most, count = tonumber(ARGV[3]), 0
while count < most do
    local entry = redis.call('XRANGE', KEYS[1], '-', '(' .. ARGV[2] .. '-0', 'COUNT', 1)[1]
    if not entry then
        break
    end
    local rows, totals, adds = cjson.decode(entry[2][2]), {}, {}
    for _, row in ipairs(rows) do
        local day = string.format('%d', math.floor(row.a / 86400000))
        local place = cjson.encode({ row.k, row.m, row.t, row.g or '', row.e, row.l or '' })
        local sums = { 1, row.u[1], row.u[2], row.u[3], row.u[4], row.n }
        for n = 1, 6 do
            if sums[n] > 0 then
                local name = day .. ':' .. (n - 1) .. place
                local add = totals[name]
                -- Lua's numbers are exact up to 2^53.
                if not add or add[3] + sums[n] > 4503599627370496 then
                    add = { day, (n - 1) .. place, 0 }
                    totals[name], adds[#adds + 1] = add, add
                end
                add[3] = add[3] + sums[n]
            end
        end
    end
    for _, add in ipairs(adds) do
        -- A key of a wrong type fails here, before any row has changed.
        redis.call('ZADD', KEYS[2], add[1], add[1])
        redis.call('HLEN', ARGV[1] .. 'folded:' .. add[1])
    end
    -- Whoever compares counters with rows sees by this that it must begin again, even if a later entry fails.
    if count == 0 then
        redis.call('INCR', KEYS[3])
    end
    for _, add in ipairs(adds) do
        redis.call('HINCRBY', ARGV[1] .. 'folded:' .. add[1], add[2], string.format('%.0f', add[3]))
    end
    redis.call('XDEL', KEYS[1], entry[1])
    count = count + #rows
end
return count
