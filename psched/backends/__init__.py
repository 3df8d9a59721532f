"""The old path of `psched.stores`, kept for programs that import `psched.backends.plain`."""
