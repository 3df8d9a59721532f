#!lua flags=no-writes,allow-oom
-- Returns the output of an attempt. ARGV: the key; the scheduled time, a space and the owner. Returns the
-- number of the record, the scheduled time, a space and the owner, and the text (nothing: there is none).
local text, number = read_output(ARGV[1], ARGV[2])
return text and {number, ARGV[2], text} or {}
