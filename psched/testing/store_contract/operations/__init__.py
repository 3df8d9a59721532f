"""Tests of the capabilities that operators use."""
