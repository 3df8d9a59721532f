"""The monitor: a helper process of each master; it watches, and tells others; it runs no task."""
