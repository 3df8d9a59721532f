#!lua flags=no-writes,allow-oom
-- Returns a page of alerts, those that were raised last first. ARGV: 'all', 'open' or 'key'; the number of
-- the last alert of the previous page (empty: begin with the last one); the smallest number; the most
-- alerts; the key if the first value is 'key'. Returns the alerts.
local sets = {all = ALERTS, open = ALERTS_OPEN, key = alerts_key(ARGV[5] or '')}
local last = ARGV[2] == '' and '+inf' or '('..ARGV[2]
local page, size = {}, 0
for i, number in ipairs(redis.call('ZRANGE', sets[ARGV[1]], last, ARGV[3], 'BYSCORE', 'REV', 'LIMIT', 0,
    ARGV[4])) do
  if size > LARGEST_ANSWER then break end
  page[i] = read_alert(number)
  for _, value in ipairs(page[i][2]) do size = size + #value end
end
return page
