"""Code that every other package may use: errors, clocks, the log, payloads, lease times."""
