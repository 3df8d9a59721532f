"""Schedules in a relational database."""
