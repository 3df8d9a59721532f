"""PerfectSched's table, worked on by psched and by PerfectSched's own workers at the same time.

Reading order: `rows`, `leases`, `statements`, `table`, `claims`, `backend`. The protocol stands in
`psched.contrib.perfectsched.store.store`.
"""
