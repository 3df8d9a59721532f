#!lua flags=allow-oom
-- Ends holds. ARGV: key and holder of each hold; or the nonce of a dead worker, all of whose holds end.
if #ARGV == 1 then
  local dead = ARGV[1]..'.'
  for _, key in ipairs(redis.call('ZRANGE', HOLDS, 0, -1)) do
    local row = read_fields(key, 'held_by')
    if not row or not row[1] or row[1]:sub(1, #dead) == dead then end_hold(key) end
  end
  return
end
for i = 1, #ARGV, 2 do
  local row = read_fields(ARGV[i], 'held_by')
  if row and row[1] == ARGV[i + 1] then end_hold(ARGV[i]) end
end
