"""The old path of `psched.stores`, with the one module that docs/backends.md used to name."""
