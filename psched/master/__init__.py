"""The master: it forks workers, watches them and replaces them. It knows no schedules.

Module `master` contains the loop, `workers` the table of child processes, `worker_child` an entry
of that table, and `generation_spec` the parameters with which the caller defines the workers.
"""
