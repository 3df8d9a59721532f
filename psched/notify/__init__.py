"""Tells people and programs what has happened: webhooks, commands, mail, tasks."""
