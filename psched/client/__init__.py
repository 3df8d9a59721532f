"""Schedules for programs: the collection, what changes them, and leasing without a worker."""
