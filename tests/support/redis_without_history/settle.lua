#!lua flags=allow-oom
-- Ends leases. ARGV: 14 values for each settlement, in the order of the parameters of the function
-- `settle`. Returns for each settlement a value of psched.core.store_protocol.Settled.
local VALUES = 14

local function settle(key, owner, fence, version, seen_status, next_time, not_before, wait, rest,
    removed, retain, attempt, status, reason)
  local row = read_fields(key, 'owner', 'fence', 'version', 'settled_by', 'status')
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
    return 'done'
  end
  local retained = retain ~= '' and integer(now + retain)
  write_fields(key, {
    'next_time', optional_number(next_time), 'attempt', attempt, 'status', status,
    'reason', optional_text(reason), 'settled_by', token, 'retain_until', retained,
    'owner', false,
  })
  redis.call('ZREM', HELD, held_member(owner, key))
  set_due(key, rest == '0' and integer(math.max(tonumber(not_before), now + wait)))
  set_retention(key, retained)
  return 'done'
end

local results = {}
for i = 1, #ARGV, VALUES do results[#results + 1] = settle(unpack(ARGV, i, i + VALUES - 1)) end
return results
