"""Processes that run tasks: the forked process itself, and how its worker makes and watches it.

Reading order: `runner_pool`, `forking_runner_pool`, `fork_server`, `forker`, `runner`, `stop`.
"""
