"""The table of alerts, beside the table of schedules."""
