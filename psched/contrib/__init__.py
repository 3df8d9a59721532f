"""Support for PerfectSched's tables and for crontabs. No other package imports this one."""
