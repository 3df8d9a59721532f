"""Why an occurrence ran, or did not: pure functions from records and rows to one sentence."""
