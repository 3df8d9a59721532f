"""What all scripts share: the layout of the data, reading and writing a row.

``{table}:row:KEY``   a hash: the columns of `psched.core.model.Row`, but for the key and
                      ``next_run_time``; what is absent has the column's default
``{table}:due``       a sorted set of keys by their ``next_run_time``: those that wait or are leased
``{table}:rest``      the keys of rows at rest, which have no ``next_run_time``
``{table}:held``      OWNER, a zero byte and KEY of each leased row, in the order of their bytes
``{table}:retain``    the keys of rows that may be purged, by their ``retain_until``
``{table}:info``      a hash: the version of this layout

All have the table's name in braces, so that they are in one slot. A script runs alone, whole or not
at all, by the clock of its server. Absent values are passed as an empty text; those that may be
empty themselves have a ``=`` before them.
"""

import hashlib
from dataclasses import dataclass

from psched.base.lease_times import LONGEST_ALIVE_TIME

COLUMNS = (
    "type", "data", "cron", "timezone", "delay", "next_time", "owner", "fence", "settled_by",
    "attempt", "status", "reason", "version", "created_at", "alive_time", "options",
    "retain_until",
)  # fmt: skip
"""The fields of a row's hash, in the order in which they are read."""

SIZE = 4_000_000
"""Bytes of payload in one answer, unless one row has more."""

_PRELUDE = r"""
local p = KEYS[1]
local DUE, REST, HELD, RETAIN, INFO = p..'due', p..'rest', p..'held', p..'retain', p..'info'
local now = tonumber(redis.call('TIME')[1])

local function name(key) return p..'row:'..key end

local function lease(owner, key) return owner..'\0'..key end

local function whole(number) return string.format('%.0f', number) end

-- A text that may be empty, or false for none.
local function given(argument) return argument ~= '' and argument:sub(2) end

local function number(argument) return argument ~= '' and argument end

-- Some fields of a row, false for those that it has not; nil if there is no such hash.
local function read(key, ...)
  if redis.call('EXISTS', name(key)) == 0 then return nil end
  local got = redis.pcall('HMGET', name(key), ...)
  if got.err then return nil end
  return got
end

-- Names and values in turn; what is false is taken away.
local function write(key, fields)
  local set, gone = {}, {}
  for i = 1, #fields, 2 do
    if fields[i + 1] then
      set[#set + 1] = fields[i]
      set[#set + 1] = fields[i + 1]
    else
      gone[#gone + 1] = fields[i]
    end
  end
  if #set > 0 then redis.call('HSET', name(key), unpack(set)) end
  if #gone > 0 then redis.call('HDEL', name(key), unpack(gone)) end
end

-- Whether a row's status is the one that was seen; a client need not raise the version with it.
local function unchanged(status, seen) return seen == '' or (status or 'waiting') == seen end

-- When it is due; false: it rests.
local function put(key, at)
  if at then
    redis.call('ZADD', DUE, at, key)
    redis.call('ZREM', REST, key)
  else
    redis.call('ZREM', DUE, key)
    redis.call('ZADD', REST, 0, key)
  end
end

local function keep(key, until_then)
  if until_then then
    redis.call('ZADD', RETAIN, until_then, key)
  else
    redis.call('ZREM', RETAIN, key)
  end
end

local function remove(key, owner)
  redis.call('DEL', name(key))
  redis.call('ZREM', DUE, key)
  redis.call('ZREM', REST, key)
  redis.call('ZREM', RETAIN, key)
  if owner then redis.call('ZREM', HELD, lease(owner, key)) end
end

-- The same as psched.timing.lease_time.
local function lease_end(own, alive_time, shortest)
  local length = math.max(tonumber(own or '') or tonumber(alive_time), tonumber(shortest))
  return whole(now + math.min(length, LONGEST) + 1)
end

-- All of a row, with the time at which it is due; a word in the place of what cannot be read.
local function row(key)
  local due = redis.call('ZSCORE', DUE, key)
  local got = redis.pcall('HMGET', name(key), COLUMNS)
  if got.err then return {key, due, 'is no hash'}, 0 end
  local size = #(got[2] or '') + #(got[16] or '')
  if redis.call('EXISTS', name(key)) == 0 then
    if not due and not redis.call('ZSCORE', REST, key) then return nil, 0 end
    return {key, due, 'is gone'}, 0
  end
  return {key, due, unpack(got, 1, #got)}, size
end
"""


@dataclass(frozen=True, slots=True)
class Script:
    """A script as the server is sent it.

    Attributes:
        text: its source.
        digest: by which the server knows it.
    """

    text: str
    digest: str


def script(body: str, *flags: str) -> Script:
    """A script that begins with what all have.

    Args:
        body: the rest.
        flags: ``no-writes``; ``allow-oom``: it is run when the server's memory is full, too.
    """
    columns = ", ".join(f"'{column}'" for column in COLUMNS)
    # With this line, a replica refuses each script that may write, whether or not it would.
    first = f"#!lua flags={','.join(flags)}" if flags else "#!lua"
    text = f"{first}\n{_PRELUDE}\n{body}"
    for word, value in {"COLUMNS": columns, "LONGEST": LONGEST_ALIVE_TIME, "SIZE": SIZE}.items():
        text = text.replace(word, str(value))
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(text, digest)
