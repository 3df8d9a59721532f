"""Forks processes, exchanges messages with them, watches, signals and kills them.

No module of this package depends on schedules. To follow a child from its fork to its end, read
`spawn`, `child`, `link` with `message_shapes`, `signals`, `kill_ladder`, `tree`, `cgroup` and
`orphan_reaper`. `spawner` is the interface to these functions that a test can replace. The other
modules can be read on their own.
"""
