"""The master: it forks workers, watches them and replaces them. It knows no schedules."""
