"""A store on PerfectSched's table, while PerfectSched's own workers use the table, too.

Reading order: `rows` (what a row means), `leases` (what this process knows of its leases),
`statements` (the SQL), `lease_writer` (claim, extend, settle), `store` (the protocol of
`psched.core.store_protocol`; its docstring has the reasons). `table` creates the table.
"""
