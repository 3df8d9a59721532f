"""``python -m psched``."""

from psched.cli import main

main()
