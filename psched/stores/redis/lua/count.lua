#!lua flags=no-writes,allow-oom
-- Returns the number of rows: each row is in one of the two sets.
return redis.call('ZCOUNT', DUE, '-inf', '+inf') + redis.call('ZCOUNT', REST, '-inf', '+inf')
