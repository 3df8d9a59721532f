"""Tests that every store passes which implements `psched.core.store_protocol`."""
