"""The tables of the run history beside the table of schedules: runs, workers and changes."""
