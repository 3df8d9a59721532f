"""What every other package may use: errors, clocks, the log, payloads, the times of a lease."""
