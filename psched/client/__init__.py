"""The API for programs: the collection of schedules, changes to them, leases without a worker."""
