"""``psched import-cronjobs``: converts Kubernetes CronJobs to schedules of type ``exec``."""
