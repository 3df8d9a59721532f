"""``psched import-crontab``: a crontab, read as cron reads it, becomes schedules of type ``exec``.

`parser` reads a crontab, `crontab_to_schedules` declares the schedules, `command` is the command.
"""
