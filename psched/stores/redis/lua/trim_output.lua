#!lua flags=allow-oom
-- Deletes the oldest output. ARGV: the time in milliseconds before which it ended; the budget in bytes;
-- the most records to delete. Returns the number of deleted records.
return trim_output(tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]))
