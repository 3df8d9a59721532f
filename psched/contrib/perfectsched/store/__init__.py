"""A store on PerfectSched's table, which PerfectSched's own workers can use at the same time.

Reading order: `rows` (what a row means), `leases` (what this process knows about its leases),
`statements` (the SQL), `lease_writer` (claim, extend, settle), `store` (implements
`psched.core.store_protocol`; the module's docstring gives the reasons). `table` creates the table.
"""
