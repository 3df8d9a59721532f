"""Support for PerfectSched's tables and other schedulers. No other package imports this."""
