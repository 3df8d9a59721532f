"""What a master reports: to ``psched status``, to the service manager, and in its title."""
