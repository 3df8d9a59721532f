"""The worker: what it leases, runs and settles. `composition` shows its parts.

Reading order: `worker`, `lease_loop`, `claimer`, `store_gateway`, `task_table`, `task_guard`.
"""
