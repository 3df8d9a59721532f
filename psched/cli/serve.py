"""``psched run``: a master with its workers in the foreground."""

import click

from psched.cli import options
from psched.cli.refusals import serving


@click.command()
@click.option("-I", "--include", multiple=True, help="Look for modules in this folder first.")
@click.option("-r", "--require", multiple=True, help="Load this module or .py file.")
@click.option("--processors", type=int, help="Workers.")
@click.option("--concurrency", type=int, help="Tasks that one worker runs at the same time.")
@click.option("--log", type=click.Path(dir_okay=False), help="Log to this file.")
@options.daemon
@click.argument("dispatch", required=False)
@click.pass_obj
def run(
    place: options.Place,
    include: tuple[str, ...],
    require: tuple[str, ...],
    processors: int | None,
    concurrency: int | None,
    log: str | None,
    daemon: str | None,
    dispatch: str | None,
) -> None:
    """Run workers.

    DISPATCH routes tasks to handlers: module:name, or a name in what -r loads. What is given here
    replaces what the configuration says. Signals and exit status are those of psched-master.
    """
    from psched.service import run_configured  # noqa: PLC0415

    given = {
        "load_path": include or None,
        "require": require or None,
        "processors": processors,
        "concurrency": concurrency,
        "log": log,
        "pid_file": daemon,
        "dispatch": dispatch,
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    config, environment = place
    serving(lambda: run_configured(config, environment, overrides, daemon=daemon is not None))
