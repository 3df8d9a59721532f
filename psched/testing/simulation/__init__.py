"""Runs psched's own code in simulated time against faults, and checks its promises.

Master, workers, their runners and people share one event heap (`world`). Their code is what psched
ships; only clocks, signals, processes and the way to the store are simulated. The store is in
memory, or psched's own on SQLite. Everything is drawn from a seed (`plan`), so what has failed once
fails again, and can be made short. `observer` sees each change of a row;
`psched.testing.witnesses` and `psched verify` judge the rest.

``bin/simulate --help`` says how to run it. It needs the extra ``simulation``.
"""
