"""The command web: pages that show what runs, what ran and why not, in a browser."""
