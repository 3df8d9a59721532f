"""Commands that show what ran, and why something did not."""
