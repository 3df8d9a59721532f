"""Runners, the processes that run tasks: their own code, and how a worker forks and watches them.

Reading order: `runner_pool`, `forking_runner_pool`, `fork_server`, `forker`, `runner`, `stop`.
"""
