"""Stores schedules in a Redis server; the requests are the Lua scripts in the folder ``lua``."""
