"""Schedules in a Redis server: see `psched.backends.redis.scripts` for what it holds."""
