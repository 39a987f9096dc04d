-- What has changed of the keys since a change that is known.
-- KEYS: 1 keys, 2 their version, which counts their changes, 3 the audit, which has a line for each, the newest first
-- ARGV: 1 the number of the change that was seen last, "" for none, 2 the digest of its line, "" for number 0, 3 how
-- many changes are reported at most
-- Returns: 1 with the number of the last change reported, the digest of its line, and each key's id and record, "" where
-- it is gone; or 0 with number and digest of the last of all, where it is not known what has changed
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
local answer, seen = { 1, upto, digest(upto) }, {}
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
    if not seen[id] then
        seen[id] = true
        answer[#answer + 1] = id
        answer[#answer + 1] = redis.call('HGET', KEYS[1], id) or ''
    end
end
return answer
