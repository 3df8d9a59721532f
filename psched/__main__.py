"""The program that ``python -m psched`` runs: the command line."""

from psched.cli import main

main()
