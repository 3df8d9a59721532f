"""PerfectSched's table: a store that shares the table with PerfectSched, and its migration."""
