#!lua flags=allow-oom
-- Ends leases, and writes the records of the run history that belong to those that it ends. ARGV: the
-- limits of the history (see `write_record`); then for each settlement 21 values, in the order of the
-- parameters of the function `settle`, the number of its records, and its records. Returns for each
-- settlement a value of psched.core.store_protocol.Settled; then the number of records that could not
-- be written, and the reason for the last of them.
--
-- Without its flag, this script is `settle_and_record`: the server refuses it if its memory is full.
local VALUES = 21

-- Returns the result. If the settlement was applied now, also returns true, and the seconds after
-- which the row can be purged (nil: never).
local function settle(key, owner, fence, version, seen_status, next_time, not_before, wait, rest,
    removed, retain, attempt, status, reason, ...)
  local row = read_fields(key, 'leased_by', 'fence', 'version', 'settled_by', 'status')
  if not row then return removed == '1' and 'done' or 'preempted' end
  local token = owner..'#'..fence
  local mine = row[1] == owner and (row[2] or '0') == fence
  if not mine or (row[3] or '1') ~= version or not has_status(row[5], seen_status) then
    -- If the row was settled with this token, the request was applied before and is repeated,
    -- because its answer was lost. So the result is success.
    if row[4] == token then return 'done' end
    return mine and 'redefined' or 'preempted'
  end
  if removed == '1' then
    remove_row(key, owner)
    return 'done', true
  end
  local retained = retain ~= '' and integer(now + retain)
  write_fields(key, {
    'next_time', optional_number(next_time), 'attempt', attempt, 'status', status,
    'reason', optional_text(reason), 'settled_by', token, 'retain_until', retained,
    'leased_by', false, 'claimed_at', false, told(...)
  })
  redis.call('ZREM', HELD, held_member(owner, key))
  set_due(key, rest == '0' and integer(math.max(tonumber(not_before), now + wait)))
  set_retention(key, retained)
  return 'done', true, tonumber(retain)
end

-- Whether a record is known already. This can be only if it is about an earlier lease, because the lease
-- that ends now has had no record. A quote inside a JSON text is escaped, so only the fields match.
local function is_written(key, owner, record)
  local of = record:match('"owner":"([^"]*)"')
  if of == owner then return false end
  return is_known(key, of, record:match('"scheduled_time":(%-?%d+)'), record:match('"outcome":"([^"]*)"'))
end

local limits = {tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])}
local results, lost, reason, i = {}, 0, false, 4
while i <= #ARGV do
  local result, applied, retain = settle(unpack(ARGV, i, i + VALUES - 1))
  local first, last = i + VALUES + 1, i + VALUES + ARGV[i + VALUES]
  for j = first, applied and last or 0 do
    -- A record of a row that is removed at once goes only to an existing list, so that tasks that
    -- run once leave no lists behind.
    local problem = not is_written(ARGV[i], ARGV[i + 1], ARGV[j])
      and try_to_record(limits, ARGV[i], ARGV[j], retain, ARGV[i + 9] == '1')
    if problem then lost, reason = lost + 1, problem end
  end
  results[#results + 1] = result
  i = last + 1
end
return {results, lost, reason}
