"""Processes: forking, talking, watching, signalling, killing. Nothing here knows of schedules.

To follow a child from its fork to its end, read `spawn`, `child`, `link` with `message_shapes`,
`signals`, `kill_ladder`, `tree`, `cgroup` and `orphan_reaper`; `spawner` is all of that as an
interface, for loops that a test drives. The others stand alone.
"""
