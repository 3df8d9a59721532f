"""The types of arguments by keyword: fields of schedules and tasks, and settings."""
