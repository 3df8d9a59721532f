"""``psched import-crontab``: converts a crontab to schedules of type ``exec``.

`parser` reads a crontab as cron does. `crontab_to_schedules` converts its commands to schedules.
`command` is the command line interface.
"""
