"""The command run."""

import click

from psched import config
from psched.app import read_config
from psched.cli import options
from psched.cli.daemon import worker_options
from psched.cli.exit_status import run_and_exit
from psched.process import early_signals


@click.command()
@worker_options.add_options
@click.pass_obj
def run(location: options.ConfigLocation, /, words: tuple[str, ...], **given: object) -> None:
    """Run a master and its workers in the foreground.

    DISPATCH routes tasks to your handlers: module:name, or a name in a module that -r imports. In
    place of a dispatch, --exec or --script run the tasks of every type, except psched's own types
    (exec, push). Options replace the settings of the configuration file.

    Signals and exit status are those of psched-master; see psched-master --help.
    """
    early_signals.receive()
    from psched.service.run import run_configured  # noqa: PLC0415

    options_given = {**worker_options.overrides(given, words), **location.overrides}
    path, environment, _ = location
    heartbeat, daemon = given["heartbeat_interval"], given["daemon"] is not None

    def run_master() -> int:
        overrides = worker_options.with_timeout(
            options_given, lambda: config.raw_settings(read_config(path, environment), environment)
        )
        if heartbeat is not None:
            settings = read_config(path, environment, overrides)
            worker_options.check_heartbeat(heartbeat, settings)
        return run_configured(path, environment, overrides, daemon=daemon)

    run_and_exit(run_master)
