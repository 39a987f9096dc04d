-- Precedes every other script, so that it runs only on the ledger that its host knows.
if redis.call('EXISTS', table.remove(KEYS)) == 0 then
    return redis.error_reply('EPOCH another ledger')
end
