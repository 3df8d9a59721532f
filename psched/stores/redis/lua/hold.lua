#!lua flags=allow-oom
-- Holds schedules for extra runs, or extends such holds. ARGV: alive_time, the shortest length of a hold,
-- the marks with blanks between them, then key and holder of each row. Returns for each row 1 if it is
-- held now by the holder, otherwise 0.
--
-- A hold and a claim exclude each other, because each of them is one script: a hold requires that the row
-- has no owner, and a claim passes over a row that is held.
local alive_time, shortest, marks = ARGV[1], ARGV[2], ' '..ARGV[3]..' '
local held = {}
for i = 4, #ARGV, 2 do
  local key, holder = ARGV[i], ARGV[i + 1]
  local row = read_fields(key, 'leased_by', 'status', 'alive_time', 'held_by')
  local marked = row and marks:find(' '..(row[2] or 'waiting')..' ', 1, true)
  local mine = row and not row[1] and (row[4] == holder or not (marked or is_held(key)))
  if mine then
    local ends = lease_end(row[3], alive_time, shortest)
    redis.call('HSET', row_key(key), 'held_by', holder, 'held_until', ends)
    redis.call('ZADD', HOLDS, ends, key)
  end
  held[#held + 1] = mine and 1 or 0
end
return held
