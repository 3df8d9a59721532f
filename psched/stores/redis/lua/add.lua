#!lua
-- Adds all given rows, or none if a row with one of the keys exists. ARGV: the nonce of this
-- insert, then 12 values for each row. Returns nil if the rows were added, otherwise the first key
-- that exists already or is given twice.
local VALUES = 12

local seen = {}
for i = 2, #ARGV, VALUES do
  local key = ARGV[i]
  if seen[key] or redis.call('EXISTS', row_key(key)) == 1 then return key end
  seen[key] = true
end
for i = 2, #ARGV, VALUES do
  local key, kind, data, cron, timezone, delay, next_time, next_run_time, alive_time, options,
    local_time, label = unpack(ARGV, i, i + VALUES - 1)
  local fields = {'type', kind, 'settled_by', ARGV[1], 'created_at', integer(now)}
  for column, value in pairs({
    data = optional_text(data), cron = optional_text(cron), timezone = optional_text(timezone),
    delay = delay ~= '0' and delay, next_time = optional_number(next_time),
    alive_time = optional_number(alive_time), options = optional_text(options),
    local_time = optional_text(local_time), label = optional_text(label),
  }) do
    if value then
      fields[#fields + 1] = column
      fields[#fields + 1] = value
    end
  end
  redis.call('HSET', row_key(key), unpack(fields))
  set_due(key, optional_number(next_run_time))
end
return false
