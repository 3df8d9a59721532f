"""Triggers, which determine when a schedule runs: cron lines, intervals and users' classes."""
