"""``psched import-timers``: converts systemd's timers to schedules of type ``exec``.

`units` finds and reads unit files. `calendar` translates the times of a timer, `exec_line` the
commands of a service; `timers_to_schedules` converts a timer and its service to schedules.
`command` is the command line interface.
"""
