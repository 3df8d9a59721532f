"""PerfectSched's table: as a store that psched shares with PerfectSched, and its migration."""
