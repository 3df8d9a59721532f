"""Schedules in a Redis server: see `psched.stores.redis.scripts` for what it holds."""
