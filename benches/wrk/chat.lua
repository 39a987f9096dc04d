-- Chat requests for wrk, whole or streamed. Arguments after `--`: KEY MODEL [stream]. See README.md, "Measured".
--
-- wrk counts an answer when it is complete, a stream at its last event; what is no 200 it reports as "Non-2xx".

function init(args)
  local key, model, stream = args[1], args[2], args[3] == "stream"
  if not key or not model then
    error("usage: wrk ... -s benches/wrk/chat.lua URL -- KEY MODEL [stream]")
  end
  local text = string.rep("The heron waits in the shallow water and stands. ", 20)
  wrk.method = "POST"
  wrk.path = "/v1/chat/completions"
  wrk.headers["authorization"] = "Bearer " .. key
  wrk.headers["content-type"] = "application/json"
  wrk.body = string.format('{"model":"%s","stream":%s,"messages":[{"role":"user","content":"%s"}]}',
    model, tostring(stream), text)
  request_text = wrk.format()
end

function request()
  return request_text
end
