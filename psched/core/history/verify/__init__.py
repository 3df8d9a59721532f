"""Checks by the run history that psched has kept its promises: pure functions."""
