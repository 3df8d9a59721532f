"""The master: a process that forks worker processes, watches them and replaces dead ones.

The workers read the schedules; the master does not. Module `master` contains the master's loop,
`workers` the table of its child processes, and `worker_child` one entry of that table.
`generation_spec` contains the parameters by which the caller defines the workers.
"""
