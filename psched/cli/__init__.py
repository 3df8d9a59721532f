"""The command line: ``psched`` and ``psched-master``."""


def main() -> None:
    """The command ``psched``."""
    from psched.cli.commands import psched  # noqa: PLC0415  # only what a command needs

    psched(prog_name="psched")


def master_main() -> None:
    """The command ``psched-master``."""
    from psched.cli.master import master  # noqa: PLC0415

    master(prog_name="psched-master")
