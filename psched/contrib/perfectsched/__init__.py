"""PerfectSched's table: used as a store beside PerfectSched's workers, or migrated."""
