#!lua
-- Stores the version of the layout if no version is stored, or begins the upgrade from layout 1. ARGV: the
-- version; the age in seconds after which a worker is taken to be gone; 1 if workers of layout 1 do not
-- matter, otherwise 0. Returns the version that was stored before, or nil; 'upgrading' if the rows are to be
-- upgraded now; and the nonces of the workers that must stop first.
--
-- The name of the hash of layout 1 is changed first, so that workers of that time claim nothing from now on.
-- See upgrade.lua for the rest.
local version, gone_after, force = unpack(ARGV)
local found = redis.call('HGET', INFO, 'version')
if found then return {found, {}} end
if redis.call('EXISTS', OLD_INFO) == 0 and redis.call('EXISTS', UPGRADING) == 0 then
  redis.call('HSET', INFO, 'version', version)
  return {false, {}}
end
local old = redis.call('HGET', OLD_INFO, 'version')
if old and old ~= '1' then return {old, {}} end
if old then
  local alive = {}
  for _, nonce in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, '('..integer(now - gone_after), '+inf')) do
    if not redis.call('HGET', worker_key(nonce), 'ended') then alive[#alive + 1] = nonce end
  end
  if #alive > 0 and force == '0' then return {old, alive} end
  move_info(OLD_INFO, UPGRADING)
end
return {'upgrading', {}}
