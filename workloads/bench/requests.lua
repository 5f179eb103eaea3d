-- wrk sends the requests of a file, in turn. Each stands there after its length in bytes and a line feed.
-- In the end it prints: DONE requests microseconds refused broken, and 1000 quantiles of the latency, microseconds.

local prepared, place = {}, 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  while true do
    local size = file:read("*n")
    if not size then break end
    file:read(1)
    prepared[#prepared + 1] = file:read(size)
  end
  file:close()
end

function request()
  place = place % #prepared + 1
  return prepared[place]
end

function done(summary, latency)
  local failed = summary.errors
  io.write("DONE ", summary.requests, " ", summary.duration, " ", failed.status, " ")
  io.write(failed.connect + failed.read + failed.write + failed.timeout)
  for i = 0, 999 do
    io.write(" ", latency:percentile((i + 0.5) / 10))
  end
  io.write("\n")
end
