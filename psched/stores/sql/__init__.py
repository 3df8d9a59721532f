"""Schedules in a relational database.

Reading order: `store` (the protocol), `statements` (the SQL), `claims` (how due rows are claimed),
`connector` (one connection, and what its errors mean), `dialects` (how databases differ).
"""
