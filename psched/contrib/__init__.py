"""Support for PerfectSched's tables and for crontabs. No other package of psched imports this."""
