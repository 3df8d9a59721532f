"""Commands that show what ran and what was changed, what is wrong, and why something did not run."""
