"""``psched import-timers``: converts systemd's timers to schedules of type ``exec``.

`units` finds and reads unit files, `exec_line` translates the commands of a service, and
`timers_to_schedules` converts a timer and its service. `command` is the command line interface.
"""
