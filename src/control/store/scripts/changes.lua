-- Reports the keys that have changed since a known change.
-- KEYS: 1 keys, 2 their version, which is the number of changes, 3 the audit, with a line for each change, newest
--       first.
-- ARGV: 1 number of the last known change ("": none), 2 digest of its line ("" for number 0), 3 maximum number of
--       reported changes.
-- Returns: 1, number and digest of the last reported change, then id and record of each changed key ("": it was
--          deleted); or, if the changes are not known, 0, number and digest of the newest change.
local now = tonumber(redis.call('GET', KEYS[2]) or '0')
local function digest(number)
    local line = number > 0 and redis.call('LINDEX', KEYS[3], now - number)
    return line and redis.sha1hex(line) or ''
end
local seen = tonumber(ARGV[1])
if not seen or seen > now or digest(seen) ~= ARGV[2] then
    return { 0, now, digest(now) }
end
local upto = math.min(now, seen + tonumber(ARGV[3]))
local answer, reported = { 1, upto, digest(upto) }, {}
if upto == seen then
    return answer
end
local lines = redis.call('LRANGE', KEYS[3], now - upto, now - seen - 1)
if #lines < upto - seen then
    return { 0, now, digest(now) }
end
for _, line in ipairs(lines) do
    local id = string.match(line, '^[^\31]*\31[^\31]*\31[^\31]*\31([^\31]*)\31')
    if not id then
        return { 0, now, digest(now) }
    end
    if not reported[id] then
        reported[id] = true
        answer[#answer + 1] = id
        answer[#answer + 1] = redis.call('HGET', KEYS[1], id) or ''
    end
end
return answer
