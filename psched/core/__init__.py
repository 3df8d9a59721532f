"""The rules of schedules and leases, without a store, a process or a clock of their own."""
