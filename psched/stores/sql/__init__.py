"""Stores schedules in a relational database.

Reading order: `store` (the methods of a store), `statements` (the SQL), `claims` (how due rows are
claimed), `connector` (the connection and its errors), `dialects` (how databases differ).
"""
