-- Creates the ledger if it does not exist.
-- KEYS: 1 its epoch, 2 its format, 3 the epoch that an operator has accepted.
-- ARGV: 1 epoch of a new ledger, 2 format, 3 seconds for which other hosts accept it ("0": they do not).
-- Returns: the ledger's epoch.
redis.call('SET', KEYS[1], ARGV[1], 'NX')
local epoch = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1] .. ':' .. epoch, '1')
redis.call('SET', KEYS[2], ARGV[2])
if ARGV[3] ~= '0' then
    redis.call('SET', KEYS[3], epoch, 'EX', ARGV[3])
end
return epoch
