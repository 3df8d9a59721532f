"""The API for programs: reads and changes schedules, and leases tasks without a worker."""
