"""The command alerts, and alerts as other commands show them."""
