"""A store on PerfectSched's table, which PerfectSched's own workers may use at the same time.

Reading order: `rows` (what a row means), `leases` (what this process knows about its leases),
`statements` (the SQL), `lease_writer` (claim, extend, settle), `store` (the protocol of
`psched.core.store_protocol`; its docstring has the reasons). `table` creates the table.
"""
