"""The contract of a store (`psched.core.store_protocol`), as tests."""
