"""Schedules as a program sees them: the collection, its schedules, and leasing by hand."""
