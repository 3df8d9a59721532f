"""Import from other systems: PerfectSched's tables, and crontabs. No other package imports this."""
