#!lua flags=allow-oom
-- Inserts or replaces the record of a worker. ARGV: its nonce; started and ended, in seconds (0: now;
-- empty: none); the seconds after which the record is removed (0: never); then names and values of the
-- other fields in turn. The script runs even if the memory is full, because workers are few.
local nonce, started, ended, keep = unpack(ARGV, 1, 4)
local worker, seconds = worker_key(nonce), integer(now)
redis.call('DEL', worker)
redis.call('HSET', worker, 'seen', seconds, 'started', started == '0' and seconds or started,
  unpack(ARGV, 5))
if ended ~= '' then redis.call('HSET', worker, 'ended', ended == '0' and seconds or ended) end
if keep ~= '0' then redis.call('EXPIRE', worker, keep) end
redis.call('ZADD', WORKERS, seconds, nonce)
