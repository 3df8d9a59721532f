"""Chaos on real processes: three masters on one store, faults and people, and one checker.

`plan` draws what is done, `nemesis` and `people` do it, `tasks` are what runs and bears witness,
and `run` starts everything, waits for the end, and has `psched.reports.verify` judge.
"""
