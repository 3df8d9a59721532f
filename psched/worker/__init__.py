"""The worker: the process that leases rows, runs their tasks, and settles the leases.

`execution` shows what becomes of one task, step by step; `lease_loop` in which order a tick works.

Reading order: `execution`, `lease_loop`, `worker`; then `pacing`, `store_gateway`, `task_table`.
"""
