#!lua flags=no-writes,allow-oom
-- Returns a page of the output of a key, the newest first. ARGV: the key; the number of the last record of
-- the previous page (empty: begin with the newest); the most records; the scheduled time, and the number
-- of the attempt (empty: any). Returns the number after which the next page begins (nil: there is none);
-- then for each record its number, the scheduled time, a space and the owner, and the text.
local LOOKED_AT = 500
local key, place, most, time, attempt = unpack(ARGV)
local last = place == '' and '+inf' or '('..place
local found = redis.call('ZRANGE', output_key(key), last, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, LOOKED_AT,
  'WITHSCORES')
local page, size, next_place = {}, 0, false
for i = 1, #found, 2 do
  if #page == tonumber(most) or size > LARGEST_ANSWER then return {next_place, page} end
  local printed = printed_key(found[i + 1])
  local wanted = (time == '' or found[i]:match('^%S+') == time)
    and (attempt == '' or redis.call('GETRANGE', printed, 0, 40):match('^{"attempt":(%d+)') == attempt)
  local text = wanted and redis.call('GET', printed)
  if text then
    page[#page + 1] = {found[i + 1], found[i], text}
    size = size + #text
  end
  next_place = found[i + 1]
end
return {#found == 2 * LOOKED_AT and next_place, page}
