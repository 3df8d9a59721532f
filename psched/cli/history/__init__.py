"""Commands that show what ran, what is wrong, what was changed, and why something did not run."""
