"""The command ``psched`` and its subcommands, each imported when it is called for."""

from importlib import import_module

import click

from psched.cli import options
from psched.loader import undisturbed
from psched.memory import MEMORY

_HOMES = {
    "init": "schedules:init",
    "add": "schedules:add",
    "push": "queue:push",
    "list": "listing:list_",
    "show": "listing:show",
    "next": "coming:next_",
    "cancel": "queue:cancel",
    "requeue": "queue:requeue",
    "delete": "schedules:delete",
    "apply": "apply:apply",
    "export": "apply:export",
    "import-crontab": "crontab:import_crontab",
    "run": "serve:run",
    "configure": "configure:configure",
    "check": "check:check",
    "status": "status:status",
    "migrate": "migrate:migrate",
}
"""The module of each, and its name there."""

_HELP = {
    "init": "Create the table, or upgrade an older one; may be repeated.",
    "add": "Register a schedule.",
    "push": "Submit a task that runs once.",
    "list": "Show the schedules and tasks, those due first, those at rest last.",
    "show": "Show all that is known of a schedule or task, a field on each line.",
    "next": "Show when a schedule runs next, in its zone, in UTC and from now.",
    "cancel": "Never run these again; a task that is running is stopped first, by its worker.",
    "requeue": "Run again what has ended or was quarantined, with all its attempts before it.",
    "delete": "Delete schedules; a task that is running is stopped first, by its worker.",
    "apply": "Make the database match files: add and change what they declare, and nothing else.",
    "export": "Write the schedules to a file, which apply reads; - is standard output.",
    "import-crontab": "Read a crontab into schedules of type exec, as a file for apply.",
    "run": "Run workers.",
    "configure": "Write the options to the configuration file PATH, which -c then reads.",
    "check": "Validate the configuration, import the handlers, try the database.",
    "status": "Ask the running masters: workers, tasks, leases, the last errors.",
    "migrate": "Move a PerfectSched or PerfectQueue table into psched's.",
}
"""The first sentence of each one's docstring, for the list of all."""


class Subcommands(click.Group):
    """A group of stand-ins: they know their names and what the list of all says of them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Click's, which the command itself takes the place of its stand-in."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, None if found is None else load(found.name or ""), rest


def load(name: str) -> click.Command:
    """Import a subcommand."""
    module, _, attribute = _HOMES[name].partition(":")
    with undisturbed():
        command: click.Command = getattr(import_module(f"psched.cli.{module}"), attribute)
    return command


@click.group(cls=Subcommands, context_settings=options.HELP)
@click.version_option(package_name="psched")
@options.configuration
@click.pass_context
def psched(context: click.Context, config: str | None, environment: str | None) -> None:
    """A highly available cron and task queue on the database you already run."""
    MEMORY.visit()
    context.obj = (config, environment)


for _name, _help in _HELP.items():
    psched.add_command(click.Command(_name, help=_help))
