"""The command run."""

import click

from psched.cli import options
from psched.cli.daemon import worker_options
from psched.cli.output import run_and_exit
from psched.process import early_signals


@click.command()
@worker_options.add_options
@click.pass_obj
def run(location: options.ConfigLocation, /, words: tuple[str, ...], **given: object) -> None:
    """Run a master and its workers in the foreground.

    DISPATCH routes tasks to your handlers: module:name, or a name in a module that -r imports. In
    place of DISPATCH, --exec or --script runs the tasks of every type, except psched's own types
    (exec, push). Options override the settings of the configuration file. A DURATION is seconds, or
    a number with the unit s, m, h or d: 30s, 5m, 1h, 30d.

    Signals and exit status are those of psched-master; see psched-master --help.
    """
    early_signals.receive()
    from psched.service.run import run_configured  # noqa: PLC0415

    def run_master() -> int:
        (path, environment, overrides), _ = worker_options.settings_of_run(location, given, words)
        return run_configured(path, environment, overrides, daemon=given["daemon"] is not None)

    run_and_exit(run_master)
