"""The command line: ``psched`` and ``psched-master``."""

import gc


def main() -> None:
    """The command ``psched``."""
    from psched.base.loader import gc_paused  # noqa: PLC0415  # see master_main

    with gc_paused():
        from psched.cli.commands import psched  # noqa: PLC0415  # only what a command needs
        from psched.cli.output import filter_output  # noqa: PLC0415

    filter_output()
    try:
        psched(prog_name="psched")
    finally:
        # What is about to go need not be searched for garbage.
        gc.freeze()


def master_main() -> None:
    """The command ``psched-master``."""
    from psched.process import early_signals  # noqa: PLC0415  # before anything that takes time

    early_signals.receive()

    from psched.cli.service.master import master  # noqa: PLC0415

    master(prog_name="psched-master")
