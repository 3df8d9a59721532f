"""When a schedule runs: cron lines, intervals, classes of the user's own, and time zones."""
