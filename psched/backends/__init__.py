"""The former import path of `psched.stores`, for programs that import `psched.backends.plain`."""
