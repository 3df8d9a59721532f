#!lua flags=allow-oom
-- Ends leases of a dead worker, and writes their records: their attempts are lost. ARGV: alive_time; the
-- seconds that a row must wait longer with each attempt after its first; the limits of the run history (see
-- `write_record`); then for each lease its member of the set HELD, the fence, and its record (empty: none).
-- Returns the keys of the released rows, the number of records that could not be written, and the reason.
--
-- Without its flag, this script is `recover_and_record`: the server refuses it if its memory is full.
local VALUES = 3

local alive_time, wait = ARGV[1], ARGV[2]
local limits = {tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])}
local released, lost, reason = {}, 0, false
for i = 6, #ARGV, VALUES do
  local member, fence, record = unpack(ARGV, i, i + VALUES - 1)
  local zero = member:find('%z')
  local owner, key = member:sub(1, zero - 1), member:sub(zero + 1)
  local row = read_fields(key, 'leased_by', 'fence', 'attempt', 'status', 'next_time', 'moved_at')
  local attempt = row and tonumber(row[3] or '0') or 0
  local ends = tonumber(redis.call('ZSCORE', DUE, key) or '0')
  if not row or row[1] ~= owner then
    redis.call('ZREM', HELD, member)
  elseif (row[2] or '0') == fence and ends > now and ends <= now + alive_time + 1 then
    write_fields(key, {'leased_by', false, 'claimed_at', false, 'settled_by', owner..'#'..fence})
    -- What a client has written during the lease remains.
    if attempt > 0 and row[4] ~= 'paused' and row[5] and not row[6] then
      write_fields(key, {'reason', 'its worker died', 'reason_code', 'worker_died'})
    end
    redis.call('ZREM', HELD, member)
    -- See `psched.core.attempts.wait_after_death`. One second is added, because `now` is rounded down, and
    -- the wait would otherwise end early.
    local longer = tonumber(wait) * math.max(0, math.min(attempt - 1, 12))
    set_due(key, integer(now + (longer > 0 and longer + 1 or 0)))
    released[#released + 1] = key
    local problem = record ~= '' and try_to_record(limits, key, record)
    if problem then lost, reason = lost + 1, problem end
  end
end
return {released, lost, reason}
