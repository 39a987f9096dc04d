-- Lists keys in the order of their creation, as of one moment.
-- KEYS: 1 keys, 2 keys by creation.
-- ARGV: 1 id of the key before the first one ("": none), 2 maximum number of keys.
-- Returns: id and record of each key ("": it has none), or false if the key before does not exist.
local from = 0
if ARGV[1] ~= '' then
    local rank = redis.call('ZRANK', KEYS[2], ARGV[1])
    if not rank then
        return false
    end
    from = rank + 1
end
local answer = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], from, from + ARGV[2] - 1)) do
    answer[#answer + 1] = id
    answer[#answer + 1] = redis.call('HGET', KEYS[1], id) or ''
end
return answer
