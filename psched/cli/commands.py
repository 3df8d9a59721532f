"""The command ``psched`` and its subcommands, each imported when it is called for."""

from importlib import import_module

import click

from psched.base.loader import gc_paused
from psched.cli import options
from psched.memory import MEMORY

_SUBCOMMANDS = {
    "init": (
        "cli.schedules.edit:init",
        "Create the table, or upgrade an older one; may be repeated.",
    ),
    "add": (
        "cli.schedules.edit:add",
        "Register a schedule.",
    ),
    "push": (
        "cli.schedules.tasks:push",
        "Submit a task that runs once.",
    ),
    "list": (
        "cli.schedules.listing:list_",
        "Show the schedules and tasks, those due first, those at rest last.",
    ),
    "show": (
        "cli.schedules.listing:show",
        "Show all that is known of a schedule or task, a field on each line.",
    ),
    "next": (
        "cli.schedules.next_times:next_",
        "Show when a schedule runs next, in its zone, in UTC and from now.",
    ),
    "cancel": (
        "cli.schedules.tasks:cancel",
        "Never run these again; a task that is running is stopped first, by its worker.",
    ),
    "requeue": (
        "cli.schedules.tasks:requeue",
        "Run again what has ended, was quarantined or is paused, with all its attempts before it.",
    ),
    "delete": (
        "cli.schedules.edit:delete",
        "Delete schedules; a task that is running is stopped first, by its worker.",
    ),
    "apply": (
        "cli.schedules.apply:apply",
        "Make the database match files: add and change what they declare, and nothing else.",
    ),
    "export": (
        "cli.schedules.apply:export",
        "Write the schedules to a file, which apply reads; - is standard output.",
    ),
    "import-crontab": (
        "contrib.crontab.command:import_crontab",
        "Read a crontab into schedules of type exec, as a file for apply.",
    ),
    "run": (
        "cli.service.run:run",
        "Run workers.",
    ),
    "configure": (
        "cli.service.configure:configure",
        "Write the options to the configuration file PATH, which -c then reads.",
    ),
    "check": (
        "cli.service.check:check",
        "Validate the configuration, import the handlers, try the database.",
    ),
    "status": (
        "cli.service.status:status",
        "Ask the running masters: workers, tasks, leases, the last errors.",
    ),
    "migrate": (
        "contrib.perfectsched.migration.command:migrate",
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
    with gc_paused():
        command: click.Command = getattr(import_module(f"psched.{module}"), attribute)
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
