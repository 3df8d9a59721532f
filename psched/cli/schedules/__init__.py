"""Commands that add, show, change and delete schedules and tasks."""
