local budget, window, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if burst == 0 then
  if tonumber(redis.call('GET', KEYS[1]) or '0') >= budget then return 0 end
  if redis.call('INCR', KEYS[1]) == 1 then redis.call('EXPIRE', KEYS[1], window) end
  return 1
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local unit = window * 1000000 / budget
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now) + unit
if arrival - now > burst * unit then return 0 end
redis.call('SET', KEYS[1], string.format('%.0f', arrival), 'PX', math.ceil((arrival - now) / 1000))
return 1
