#!lua
-- Notes that somebody reads the output of a running attempt. ARGV: the key; the scheduled time, a space
-- and the owner; the present time, and the time until which it is read, in milliseconds. Returns 1 if it
-- was read already, 0 if not. No effect if the output was written after the attempt's end.
local key, attempt, present, wanted = unpack(ARGV)
local text = read_output(key, attempt)
if text and not is_live(text) then return 0 end
local asked = asked_key(key, attempt)
local before = tonumber(redis.call('GET', asked) or '0')
if before < tonumber(wanted) then redis.call('SET', asked, wanted, 'PXAT', wanted) end
return before > tonumber(present) and 1 or 0
