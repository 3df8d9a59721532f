"""Other systems: PerfectSched's tables, and crontabs. No other package imports this one."""
