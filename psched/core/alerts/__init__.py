"""Alerts: what somebody must be told about schedules and hosts, and when it was over."""
