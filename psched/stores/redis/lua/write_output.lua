#!lua
-- Writes what attempts have printed, and deletes the oldest output if all of it takes too much. ARGV: the
-- seconds after which a record is removed (0: never); the most records of one key (0: no limit); the
-- budget in bytes (0: no limit); then for each record its key, the scheduled time, a space and the owner,
-- the time `ended`, the size, and the text. A record of the same attempt is replaced.
local VALUES = 5
local keep, most_per_key, budget = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local written = 0
for i = 4, #ARGV, VALUES do
  local key, attempt, ended, size, text = unpack(ARGV, i, i + VALUES - 1)
  local index = output_key(key)
  local replaced = redis.call('ZSCORE', index, attempt)
  local number = integer(redis.call('HINCRBY', OUTPUT_INFO, 'last', 1))
  if keep > 0 then
    redis.call('SET', printed_key(number), text, 'EX', keep)
  else
    redis.call('SET', printed_key(number), text)
  end
  if replaced then remove_numbered_output(replaced) end
  redis.call('ZADD', OUTPUT, number, number..' '..size..' '..ended..' '..key)
  redis.call('HINCRBY', OUTPUT_INFO, 'size', size)
  redis.call('ZADD', index, number, attempt)
  if most_per_key > 0 then
    local excess = redis.call('ZRANGE', index, 0, -most_per_key - 1, 'WITHSCORES')
    for j = 2, #excess, 2 do remove_numbered_output(excess[j]) end
  end
  redis.call(unpack(keep > 0 and {'EXPIRE', index, keep} or {'PERSIST', index}))
  written = written + 1
end
-- Several are deleted for each that is written, so what exceeds a smaller budget is gone after a while.
if budget > 0 then trim_output(0, budget, 5 * written) end
