-- wrk sends reviews made of the file named by its first argument, and tells its results as one line of JSON.
-- No two reviews are the same: "siblings" differ as pods of one ReplicaSet do (name, token volume), "strangers" also
-- in a container's name, which the rules look at, so that nothing learned from one pod helps with the next.

local VARIANTS = 2000  -- more than the webhook remembers
local bodies = {}
local sent = 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  local body = file:read("*a")
  file:close()
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  for number = 1, VARIANTS do
    local mark = string.format("%05d", number)
    local varied = body:gsub("q4x2m", mark):gsub("x7k2p", mark)
    if args[2] == "strangers" then
      varied = varied:gsub('"name":"forwarder"', '"name":"proxy' .. mark .. '"')
    end
    bodies[number] = wrk.format(nil, nil, nil, varied)
  end
end

function request()
  sent = sent % VARIANTS + 1
  return bodies[sent]
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "seconds": %.6f, "p50_ms": %.4f, "p99_ms": %.4f, "refused": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
