-- Precedes the scripts that write counters. A counter of the wrong type is skipped and reported in `odd`, so that the
-- other counters are still written. Any other error ends a script that has written nothing, since it can be sent again:
-- a full memory, or a server that only reads now.
local odd, written = {}, false
local function try(command, name, ...)
    local done = redis.pcall(command, name, ...)
    if type(done) == 'table' and done.err then
        local is_odd = string.find(done.err, 'WRONGTYPE') or string.find(done.err, 'integer')
            or string.find(done.err, 'overflow')
        if not written and not is_odd then
            error(done.err)
        end
        if not odd[name] then
            odd[name] = true
            odd[#odd + 1] = name
        end
        return nil
    end
    written = true
    return done
end
