"""The command ``psched`` and its subcommands, each of which is imported only when it is called."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import click

from psched.base.loader import gc_paused
from psched.cli import options
from psched.cli.output import report_errors
from psched.config.urls import without_secrets

_SUBCOMMANDS = {
    "init": ("cli.daemon.init:init", "Create the tables, or upgrade them to this version."),
    "add": ("cli.schedules.add:add", "Add a schedule."),
    "push": ("cli.schedules.push:push", "Submit a task that runs once."),
    "list": ("cli.schedules.listing:list_", "List schedules and tasks."),
    "show": ("cli.schedules.show:show", "Show everything about one schedule or task."),
    "next": ("cli.schedules.next:next_", "Show the next times of a schedule or cron line."),
    "history": (
        "cli.history.command:history",
        "Show what ran, how it ended, and what did not run.",
    ),
    "logs": ("cli.history.logs:logs", "Show what a task printed, or what it prints now."),
    "why": ("cli.history.why:why", "Explain why a schedule ran, or did not run."),
    "alerts": ("cli.history.alerts:alerts", "Show what is wrong with schedules and hosts."),
    "audit": ("cli.history.audit:audit", "Show who changed which schedule."),
    "verify": (
        "cli.history.verify:verify",
        "Check that every occurrence ran once or has a reason.",
    ),
    "trigger": ("cli.operate.commands:trigger", "Run schedules now, beside their regular runs."),
    "backfill": ("cli.operate.commands:backfill", "Run the missed times of a period."),
    "stop": ("cli.operate.commands:stop", "Stop what runs now: its schedule goes on."),
    "cancel": ("cli.operate.commands:cancel", "Cancel tasks or schedules: they run no more."),
    "force-finish": ("cli.operate.commands:force_finish", "Mark tasks or schedules as finished."),
    "requeue": (
        "cli.operate.commands:requeue",
        "Run again what ended, was quarantined or is paused.",
    ),
    "pause": ("cli.operate.commands:pause", "Pause schedules or tasks, also until a time."),
    "resume": ("cli.operate.commands:resume", "Let paused schedules or tasks run again."),
    "skip": ("cli.operate.commands:skip", "Leave out the next runs of schedules."),
    "edit": ("cli.operate.edit:edit", "Change schedules."),
    "delete": ("cli.operate.commands:delete", "Delete schedules or tasks."),
    "apply": ("cli.schedules.apply:apply", "Add and change schedules as files declare them."),
    "export": ("cli.schedules.export:export", "Write the schedules to a file that apply can read."),
    "import-crontab": (
        "contrib.crontab.command:import_crontab",
        "Convert a crontab to a file of schedules for apply.",
    ),
    "import-timers": (
        "contrib.timers:import_timers",
        "Convert systemd's timers to a file for apply.",
    ),
    "import-cronjobs": (
        "contrib.cronjobs:import_cronjobs",
        "Convert Kubernetes CronJobs to a file for apply.",
    ),
    "run": ("cli.daemon.run:run", "Run a master and its workers in the foreground."),
    "configure": (
        "cli.daemon.configure:configure",
        "Write options of run to a configuration file.",
    ),
    "install-systemd": (
        "cli.install.command:install_systemd",
        "Install the systemd unit, its user, and a configuration.",
    ),
    "check": ("cli.daemon.check:check", "Check the configuration, handlers, log and database."),
    "status": (
        "cli.daemon.masters:status",
        "Show the masters of this host, their workers and tasks.",
    ),
    "health": ("cli.daemon.masters:health", "Tell whether this host can run due tasks."),
    "hooks": ("cli.daemon.hooks:hooks", "List the hooks that are told about alerts, or test one."),
    "hosts": ("cli.daemon.hosts:hosts", "List the hosts that run tasks."),
    "top": ("cli.top.command:top", "Show what runs now, and what is late, next or failed."),
    "web": (
        "web.command:web",
        "Show and change schedules in a browser, until Ctrl-C.",
    ),
    "demo": ("web.demo.command:demo", "Try psched: a service with fake work, until Ctrl-C."),
    "load": ("cli.operate.load:load_", "Show when most runs come, and how to spread them."),
    "migrate": (
        "contrib.perfectsched.migration.command:migrate",
        "Move a PerfectSched or PerfectQueue table into psched's.",
    ),
}
"""For the name of each subcommand: its import path, and the first sentence of its help."""


_REPORTING = frozenset({"run"})
"""Commands that report their errors themselves; the masters' processes load users' triggers."""

_CHANGE = "psched edit KEY changes a schedule"
_AFTER = "stands after the command, as in psched run"
_CONFIG = "psched run has it; other commands read -c"
_FORMER = {
    "--run": "psched run --script FILE.py runs a script",
    "--exec": "psched run --exec COMMAND runs a program",
    "--push": "psched push KEY=DATA submits a task",
    "submit": "psched push KEY TYPE DATA submits a task",
    "--list": "psched list lists schedules and tasks",
    "--cancel": "psched cancel KEY cancels a task",
    "force_finish": "the command is force-finish",
    "--configure": "psched configure PATH writes a configuration file",
    "--setup": "psched configure PATH writes a configuration file",
    "--add": "psched add KEY TYPE CRON DATA adds a schedule",
    "--delete": "psched delete KEY deletes a schedule",
    "--modify-sched": _CHANGE,
    "--modify-delay": _CHANGE,
    "--modify-data": _CHANGE,
    "--simpledb": "--url simpledb://REGION --table DOMAIN; AWS' keys are in AWS_ACCESS_KEY_ID and"
    " AWS_SECRET_ACCESS_KEY",
    **dict.fromkeys(("--database", "--table"), _AFTER),
    **dict.fromkeys(("-f", "--file", "--daemon", "--log"), _CONFIG),
}
"""Options and commands of PerfectSched and PerfectQueue that psched has in another form."""


@contextmanager
def _hinting() -> Iterator[None]:
    """Say of an unknown option of PerfectSched and PerfectQueue what replaces it."""
    try:
        yield
    except click.NoSuchOption as error:
        if (hint := _FORMER.get(error.option_name)) is None:
            raise
        raise click.UsageError(f"{error.option_name}: {hint}", error.ctx) from None


class _Subcommands(click.Group):
    """A group of placeholders, each with the name and the short help of one subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the subcommand."""
        with _hinting():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  # as in click
        """Parse the rest of the line, and call the subcommand."""
        with _hinting():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the called subcommand, and return it in place of its placeholder."""
        if args[0] in _FORMER:
            raise click.UsageError(f"{args[0]}: {_FORMER[args[0]]}", ctx)
        name, found, rest = super().resolve_command(ctx, args)
        return name, None if found is None else load(found.name or ""), rest


@cache
def load(name: str) -> click.Command:
    """Import a subcommand, and add what all subcommands have in common: options, and its errors."""
    path, _ = _SUBCOMMANDS[name]
    module, _, attribute = path.partition(":")
    with gc_paused():
        command: click.Command = getattr(import_module(f"psched.{module}"), attribute)
    # What was imported stays: the collector need not look at it while the command begins.
    gc.freeze()
    command.params += options.SUBCOMMAND_OPTIONS
    if command.callback is not None and name not in _REPORTING:
        command.callback = report_errors(command.callback)
    return command


@click.group(cls=_Subcommands, context_settings=options.HELP)
@click.version_option(package_name="psched")
@options.config_options
@click.pass_context
def psched(context: click.Context, config: str | None, environment: str | None) -> None:
    """A highly available cron and task queue on the database you already run.

    To begin: psched init creates the table, psched add adds a schedule, and psched run runs the
    schedules. psched COMMAND --help explains a command.
    """
    shown = [without_secrets(each) if "://" in each else each for each in sys.argv]
    if shown != sys.argv:  # such as a password in --url, which ps would show to every user
        from psched.process.kernel import set_title  # noqa: PLC0415  # it is rarely needed

        set_title(" ".join(shown[1:]))
    context.obj = options.ConfigLocation(config, environment)


for _name, (_, _help) in _SUBCOMMANDS.items():
    psched.add_command(click.Command(_name, help=_help))
