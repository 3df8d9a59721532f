"""The path of `psched.stores` in earlier versions. One module: what docs/backends.md named."""
