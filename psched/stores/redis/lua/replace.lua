#!lua flags=allow-oom
-- Replaces a row if it has not changed since it was read, and writes records of the run history if it is
-- replaced. ARGV: the key; version, fence, owner, next_run_time and status as read; then the new values;
-- then the values of `write_new_records`. Returns 1, or 0 if the row has changed; then the number of
-- records that could not be written, and the reason for the last of them.
--
-- Without its flag, this script is `replace_and_record`: the server refuses it if its memory is full.
local VALUES = 28

-- Returns 1, 0 or an error.
local function replace()
  local key, version, fence, owner, due, seen_status = unpack(ARGV, 1, 6)
  local row = read_fields(key, 'version', 'fence', 'leased_by', 'created_at', 'status')
  if not row or (row[1] or '1') ~= version or (row[2] or '0') ~= fence
      or (row[3] or '') ~= owner or not has_status(row[5], seen_status) then
    return 0
  end
  local current = tonumber(redis.call('ZSCORE', DUE, key) or '')
  -- The next_run_time of a leased row is the end of its lease, which its worker may have extended
  -- since the row was read. So next_run_time is compared only in free rows.
  if not row[3] and (current and math.floor(current)) ~= tonumber(due) then return 0 end
  local _, _, _, _, _, _, kind, data, cron, timezone, delay, next_time, next_run_time, status, reason,
    attempt, alive_time, options, created_at, retain_until, label = unpack(ARGV)
  if type(redis.pcall('HINCRBY', row_key(key), 'version', row[1] and 1 or 2)) == 'table' then
    return redis.error_reply('UNFIT the version of the row '..key..' is no number that can grow')
  end
  write_fields(key, {
    'type', kind, 'data', optional_text(data), 'cron', optional_text(cron),
    'timezone', optional_text(timezone), 'delay', delay, 'next_time', optional_number(next_time),
    'status', status, 'reason', optional_text(reason), 'attempt', attempt,
    'alive_time', optional_number(alive_time), 'options', optional_text(options),
    'created_at', optional_number(created_at) or row[4],
    'retain_until', optional_number(retain_until), 'label', optional_text(label),
    told(unpack(ARGV, 22, VALUES))
  })
  if not row[3] then set_due(key, optional_number(next_run_time)) end
  set_retention(key, optional_number(retain_until))
  return 1
end

local replaced = replace()
if type(replaced) == 'table' then return replaced end
if replaced == 0 then return {0, 0, false} end
return {1, write_new_records(VALUES + 1)}
