"""Commands about schedules and tasks."""
