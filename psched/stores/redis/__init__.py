"""Schedules in a Redis server. The requests are Lua scripts, in the folder ``lua``."""
