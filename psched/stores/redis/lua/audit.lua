#!lua flags=allow-oom
-- Writes changes of schedules. ARGV: the most changes that are kept; then the key and the record of
-- each change. The script runs even if the memory is full, because the stream is small.
for i = 2, #ARGV, 2 do
  redis.call('XADD', AUDIT, 'MAXLEN', '~', ARGV[1], '*', 'key', ARGV[i], 'record', ARGV[i + 1])
end
