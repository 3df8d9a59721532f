"""The command ``psched`` and its subcommands, each imported when it is called for."""

from importlib import import_module

import click

from psched.cli import options
from psched.loader import undisturbed
from psched.memory import MEMORY

_SUBCOMMANDS = {
    "init": (
        "schedules:init",
        "Create the table, or upgrade an older one; may be repeated.",
    ),
    "add": (
        "schedules:add",
        "Register a schedule.",
    ),
    "push": (
        "queue:push",
        "Submit a task that runs once.",
    ),
    "list": (
        "listing:list_",
        "Show the schedules and tasks, those due first, those at rest last.",
    ),
    "show": (
        "listing:show",
        "Show all that is known of a schedule or task, a field on each line.",
    ),
    "next": (
        "coming:next_",
        "Show when a schedule runs next, in its zone, in UTC and from now.",
    ),
    "cancel": (
        "queue:cancel",
        "Never run these again; a task that is running is stopped first, by its worker.",
    ),
    "requeue": (
        "queue:requeue",
        "Run again what has ended, was quarantined or is paused, with all its attempts before it.",
    ),
    "delete": (
        "schedules:delete",
        "Delete schedules; a task that is running is stopped first, by its worker.",
    ),
    "apply": (
        "apply:apply",
        "Make the database match files: add and change what they declare, and nothing else.",
    ),
    "export": (
        "apply:export",
        "Write the schedules to a file, which apply reads; - is standard output.",
    ),
    "import-crontab": (
        "crontab:import_crontab",
        "Read a crontab into schedules of type exec, as a file for apply.",
    ),
    "run": (
        "serve:run",
        "Run workers.",
    ),
    "configure": (
        "configure:configure",
        "Write the options to the configuration file PATH, which -c then reads.",
    ),
    "check": (
        "check:check",
        "Validate the configuration, import the handlers, try the database.",
    ),
    "status": (
        "status:status",
        "Ask the running masters: workers, tasks, leases, the last errors.",
    ),
    "migrate": (
        "migrate:migrate",
        "Move a PerfectSched or PerfectQueue table into psched's.",
    ),
}
"""Of each, its module and its name there, and what the list of all says: its first sentence."""


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
    home, _ = _SUBCOMMANDS[name]
    module, _, attribute = home.partition(":")
    with undisturbed():
        command: click.Command = getattr(import_module(f"psched.cli.{module}"), attribute)
    command.params += [each for each in options.AFTER_COMMAND if each not in command.params]
    return command


@click.group(cls=Subcommands, context_settings=options.HELP)
@click.version_option(package_name="psched")
@options.configuration
@click.pass_context
def psched(context: click.Context, config: str | None, environment: str | None) -> None:
    """A highly available cron and task queue on the database you already run."""
    MEMORY.visit()
    context.obj = (config, environment)


for _name, (_, _help) in _SUBCOMMANDS.items():
    psched.add_command(click.Command(_name, help=_help))
