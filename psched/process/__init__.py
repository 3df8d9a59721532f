"""Forks processes, exchanges messages with them, observes, signals and kills them.

No module of this package depends on schedules. To follow a child from its fork to its end, read
`spawn`, `child`, `link`, `signals`, `tree` and `cgroup`.
`spawner` is the interface to these modules; a test can replace a `Spawner` by a simulated one. Each
module that is not named here can be read alone.
"""
