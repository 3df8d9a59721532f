"""The worker: the process that leases rows, runs their tasks, and settles the leases.

`composition` shows the parts of a worker.

Reading order: `worker`, `lease_loop`, `claimer`, `store_gateway`, `task_table`, `task_guard`.
"""
