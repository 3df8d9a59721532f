"""When a schedule runs: cron lines, intervals, users' classes, and time zones."""
