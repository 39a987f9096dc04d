-- Chat requests for wrk, complete or streamed. Arguments after `--`: KEY MODEL [stream].
--
-- wrk counts a response when it is complete, a stream after its last event. It reports other statuses than 2xx and 3xx
-- as "Non-2xx".

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
