"""What a worker leases besides the due rows that it can start at once."""
