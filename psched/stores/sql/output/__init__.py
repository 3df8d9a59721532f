"""The table of what attempts have printed, beside the table of schedules."""
