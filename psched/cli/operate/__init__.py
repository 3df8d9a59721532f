"""Commands that steer schedules by hand."""
