"""The command install-systemd, which puts psched's unit and its other system files in place."""
