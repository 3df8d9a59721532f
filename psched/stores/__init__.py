"""The stores on databases and services; `psched.app` creates the one that the settings select."""
