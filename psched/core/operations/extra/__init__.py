"""What an extra run and the lease of its schedule have to do with each other."""
