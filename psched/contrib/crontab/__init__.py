"""Crontabs: read as cron reads them, and written as schedules of type ``exec``."""
