"""Reads rows without their data, for the judge of expectations."""
