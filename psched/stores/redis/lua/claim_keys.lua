#!lua flags=allow-oom
-- Leases rows by their keys, whether they are due or not. ARGV: the owner, alive_time, the shortest
-- length of a lease, the statuses of rows that are left out, separated by spaces, then the keys. Returns
-- the leased rows, with the next_run_time and the attempt that they had before.
local owner, alive_time, shortest, marks = unpack(ARGV, 1, 4)

local marked = {}
for mark in marks:gmatch('%S+') do marked[mark] = true end

-- The indexes of some columns in a row of `read_row`, in which the key and next_run_time come first, and
-- how many elements such a row has.
local INDEX, COMPLETE = {}, #COLUMNS + 2
for i, column in ipairs(COLUMNS) do INDEX[column] = i + 2 end

-- The latest time, as psched.core.columns.LATEST_TIME.
local LATEST = 253402300799

-- Whether psched.core.attempts.returned finds in an attempt what to return to.
local function is_note(attempt)
  local digits = attempt:match('^%-(%d+)$')
  local time, before = ('000000'..(digits or '')):match('^(%d*)(%d%d%d)%d%d%d$')
  return digits and tonumber(before) > 0 and (tonumber(time) or 0) <= LATEST
end

-- Returns the attempt of a row during the lease, as psched.core.attempts.while_borrowed does; nil if the row
-- must not be leased. It is a text, because the numbers of this language have only 53 bits.
local function while_borrowed(due, row)
  local attempt, next_time = row[INDEX.attempt] or '0', row[INDEX.next_time]
  local count = attempt:find('^%-?%d+$') and tonumber(attempt)
  if not count then return nil end
  if row[INDEX.owner] then return next_time and is_note(attempt) and attempt or nil end
  if count < 0 or not next_time then return attempt end
  local time = due and math.min(math.max(math.floor(tonumber(due)), 1), LATEST) or 0
  return '-'..string.format('%s%03d999', integer(time), math.min(count, 998) + 1):gsub('^0+', '')
end

local rows, size = {}, 0
for i = 5, #ARGV do
  local key = ARGV[i]
  local row, bytes = read_row(key)
  local due = row and row[2]
  local attempt = row and #row == COMPLETE and while_borrowed(due, row)
  local free = attempt and not marked[row[INDEX.status] or 'waiting']
    and (not row[INDEX.owner] or (due and tonumber(due) <= now))
  -- The fence grows first, because the server refuses this if it is no number that can grow.
  local fence = free and size <= LARGEST_ANSWER and redis.pcall('HINCRBY', row_key(key), 'fence', 1)
  if fence and type(fence) ~= 'table' then
    if row[INDEX.owner] then redis.call('ZREM', HELD, held_member(row[INDEX.owner], key)) end
    fence = redis.call('HGET', row_key(key), 'fence')
    row[INDEX.owner], row[INDEX.fence] = owner, fence
    row[INDEX.claimed_at] = integer(now)..'#'..fence
    write_fields(key, {'owner', owner, 'claimed_at', row[INDEX.claimed_at], 'attempt', attempt})
    redis.call('ZADD', HELD, 0, held_member(owner, key))
    set_due(key, lease_end(row[INDEX.alive_time], alive_time, shortest))
    rows[#rows + 1] = row
    size = size + bytes
  end
end
return rows
