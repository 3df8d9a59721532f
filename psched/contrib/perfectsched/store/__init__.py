"""A store on PerfectSched's table, which PerfectSched's own workers can use at the same time.

Reading order: `rows` (what a row means, and the SQL), `leases` (what this process knows about its
leases; claim, extend, settle), `store` (implements `psched.core.store_protocol`; the module's
docstring gives the reasons). `table` creates the table.
"""
