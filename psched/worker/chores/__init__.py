"""What a worker does between its claims. Each of these requests is rare and small."""
