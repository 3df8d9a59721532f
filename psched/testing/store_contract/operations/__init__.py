"""Tests of the capabilities that extra runs, pauses and skips need.

Reading order: `leases_by_key`, `replacing`, `pauses`, `overview`, `watching`.
"""
