"""The command demo: a temporary service with fake work, and three days of a made-up past."""
