"""The command check, which tests whether a master and its workers could run."""

import atexit
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from math import floor
from typing import Any

import click

from psched.app import CLOCK, make_store
from psched.application.dispatch import Dispatch
from psched.base import lease_times, regular_files
from psched.base.errors import (
    ConfigError,
    LoadError,
    MissingDatabaseError,
    MissingTableError,
    PschedError,
    of_replica,
)
from psched.base.file_rights import user_name
from psched.base.log import STANDARD
from psched.cli.daemon.run import add_options, settings_of_run
from psched.cli.opening import warn_of_other_database
from psched.cli.operate.pause_rules import describe_pause
from psched.cli.options import ConfigLocation
from psched.cli.schedules.arguments import warn_of_steps
from psched.client.access import retry_while_unavailable
from psched.config import Config, withhold
from psched.config.monitoring import parse_url, problems_here
from psched.config.remarks import is_unverified, remarks
from psched.config.urls import MEMORY, file_of
from psched.core.history.records import GONE_AFTER, WorkerRecord
from psched.core.hosts import absent, is_template, lanes_served, too_many_lanes
from psched.core.model import Row
from psched.core.output import KEPT
from psched.core.selection import Selection
from psched.core.store_protocol import Store
from psched.handlers.configured import SingleHandler, load_handlers
from psched.handlers.permissions import (
    describe_programs,
    describe_triggers,
    find_missing,
)
from psched.handlers.run_as import refusals
from psched.notify.addresses import refusal
from psched.process.inheritance import UserDescriptors, is_users, open_descriptors
from psched.process.program_runner import SOCKET
from psched.process.signals import unblock
from psched.process.spawn import launch, prepare
from psched.service.functions import App
from psched.service.monitor_boot import check_metrics
from psched.triggers import zone
from psched.worker.chores import was_moved_away


def check_pings(settings: Config) -> None:
    """Print where pings are sent, and whether that is allowed as far as the URLs show it."""
    refused = []
    for name, url in settings.pings.items():
        target = parse_url(url)
        why = _refusal(target.host, settings)
        click.echo(f"ping {name}: to {target.shown}: {'ok' if why is None else 'refused'}")
        if why is not None:
            refused.append(f"pings.{name}: leads to {why}; name it in allow_private_addresses")
    if refused:
        raise ConfigError("\n".join(refused))


def _refusal(host: str, settings: Config) -> str | None:
    """Why nothing is sent to a host, if its URL shows that."""
    address = "127.0.0.1" if host == "localhost" else host
    with suppress(ValueError):
        return refusal(str(ip_address(address)), settings.allow_private_addresses)
    return None


_TRIES = 5
"""The maximum number of attempts to connect to the store, and the number of requests whose time is
measured."""

_MOST_SCHEDULES = 10_000
"""The maximum number of schedules whose triggers are read. It keeps the command short."""

_MOST_LANES = 500
"""The most different values of ``hosts`` that are compared with the hosts that run."""

_SAFETY_FACTOR = 2.0
"""If leases would be lost when each answer takes this many times the measured time, a warning is
shown."""


@click.command()
@add_options
@click.option(
    "--schema",
    is_flag=True,
    help="Print a JSON schema of configuration files, for editors; check nothing.",
)
@click.pass_obj
def check(
    location: ConfigLocation, /, words: tuple[str, ...], *, schema: bool, **given: object
) -> None:
    """Check the configuration, handlers, log and database.

    The command validates the configuration, imports the handlers, tests whether this user can write
    the log, connects to the database, reads and writes it, and measures how fast it answers. With
    the options of run, it checks what run would use. The command lists all problems; if there is
    one, the exit status is 1.
    """
    if schema:
        from psched.config.reference import json_schema  # noqa: PLC0415

        click.echo(json.dumps(json_schema(), indent=2))
        return
    _, settings = settings_of_run(location, given, words)
    warn_of_other_database(settings)
    click.echo(f"configuration: {settings.origin or 'built-in defaults'}: ok")
    for remark in remarks(settings):
        click.echo(f"  warning: {remark}")
    problems = _Problems()
    problems.collected_in_child(partial(_check_handlers, settings, problems))
    for line in _permissions(settings):
        click.echo(line)
    with problems.collected():
        check_metrics(settings)
    with problems.collected():
        check_pings(settings)
    with problems.collected():
        _check_log(settings)
    with problems.collected():
        _check_database(settings, problems)
    with problems.collected():
        _check_replica(settings)
    if problems.found:
        sys.exit(1)


class _Problems:
    """Prints problems on standard error, and remembers that there was one."""

    def __init__(self) -> None:
        self.found = False

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Print an error that is raised within the block, and continue after the block."""
        try:
            yield
        except (PschedError, OSError, RuntimeError) as error:  # the last: of `prepare`
            self.found = True
            click.echo(f"Error: {error}", err=True)

    def collected_in_child(self, work: Callable[[], object]) -> None:
        """Call a function in a forked child, as a worker is one, and print an error of it."""

        def live() -> int:
            unblock()
            with self.collected():
                prepare()
                work()
            return int(self.found)

        with self.collected():
            code = os.waitstatus_to_exitcode(os.waitpid(launch(live), 0)[1])
            if code < 0:
                raise LoadError(f"a process that loads the handlers was ended by signal {-code}")
            self.found |= code != 0


def _check_handlers(settings: Config, problems: _Problems) -> None:
    """Load the handlers, and fork, as a worker does."""
    own = open_descriptors()
    withhold(settings.withheld)
    with _exit_functions_told():
        dispatch = load_handlers(settings)
    opened = UserDescriptors(own)
    problems.collected_in_child(partial(_check_routes, dispatch, settings))
    for text in opened.lost():
        click.echo(f"  warning: {text}")


def _check_routes(dispatch: Dispatch | None, settings: Config) -> None:
    """Load what tasks load themselves."""
    if isinstance(dispatch, SingleHandler):
        click.echo(f"handlers: {dispatch.name} for every type: ok")
    elif dispatch is not None:
        with _exit_functions_told():
            dispatch.load_all()
        found = f"{len(dispatch.routes)} routes"
        if isinstance(dispatch, App):
            functions = f"{len(dispatch.functions)} functions"
            found = f"{functions}, {found}" if dispatch.routes else functions
        click.echo(f"handlers: {found}: ok")
    else:
        click.echo("handlers: none configured")
    if dispatch is not None and dispatch.find("exec") is not None:
        click.echo("programs: your own handler runs type exec; exec_type does not restrict it")
    else:
        click.echo(f"programs: {describe_programs(settings)}")


@contextmanager
def _exit_functions_told() -> Iterator[None]:
    """Print a line about each exit function that a user's module registers within the block."""
    register = atexit.register

    def tell(function: Callable[..., Any], /, *args: Any, **named: Any) -> object:  # noqa: ANN401
        module = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001
        if is_users(module):
            name = getattr(function, "__qualname__", function)
            click.echo(
                f"  {module}: its exit function {name} does not run in tasks; use before_exit"
            )
        return register(function, *args, **named)

    atexit.register = tell  # type: ignore[assignment]
    try:
        yield
    finally:
        atexit.register = register


def _permissions(settings: Config) -> Iterator[str]:
    """Yield lines about missing programs, about hooks, triggers, workers and time zones."""
    if isinstance(settings.allowed_programs, tuple):
        for program in find_missing(settings.allowed_programs):
            yield f"  {program}: is not on this host, or not executable"
    if settings.hooks:
        yield f"hooks: {', '.join(settings.hooks)}"
    for problem in problems_here(settings.hooks):
        yield f"  {problem}"
    yield f"triggers: {describe_triggers(settings)}"
    yield f"workers: {settings.processors}; slots of each: {settings.concurrency}"
    yield f"zones: tzdata {zone.VERSION}"


def _check_log(settings: Config) -> None:
    """Test whether this user can append to the log, without creating it."""
    path = settings.log
    if path is None or str(path) in STANDARD:
        return
    user = user_name()
    try:
        # A log that does not exist is not created here, because it would belong to this user, who
        # may be another one than that of the service.
        os.close(regular_files.open_file(path.resolve(), os.O_WRONLY | os.O_APPEND, devices=True))
    except FileNotFoundError:
        if not os.access(path.resolve().parent, os.W_OK | os.X_OK, effective_ids=True):
            raise ConfigError(
                f"log: user {user} cannot create {path}: create its folder, and give it to the user"
                " of the service"
            ) from None
    except OSError as error:
        wrong_kind = isinstance(error, regular_files.NotRegularError)
        fix = "name a file" if wrong_kind else "give the file to the user of the service"
        raise ConfigError(
            f"log: user {user} cannot append to {path}: {error.strerror}; {fix}"
        ) from None
    click.echo(f"log: {path}, which user {user} can write: ok")


def _check_database(settings: Config, problems: _Problems) -> None:
    """Connect to the database; check the rights and the speed even if one of them is a problem."""
    if settings.url == MEMORY:
        click.echo(f"database: {MEMORY}, which each master makes for itself: ok")
        return
    store = make_store(settings)
    try:
        # The request is repeated, because the first request to a slow store can time out.
        try:
            facts = retry_while_unavailable(store.examine, clock=CLOCK, tries=_TRIES)
        except (MissingDatabaseError, MissingTableError):
            if not settings.create_table or was_moved_away(file_of(settings.url)):
                raise
            click.echo(
                f"database: {settings.safe_url}: the table {settings.table} does not exist yet;"
                " workers create it when they start (create_table)"
            )
            return
        click.echo(f"database: {settings.safe_url}, table {settings.table}")
        _print_facts(facts, settings)
        with problems.collected():
            click.echo(f"  history: {_describe_history(store, settings)}")
        with problems.collected():
            click.echo(f"  output: {_describe_output(store, settings)}")
        with problems.collected():
            click.echo(f"  alerts: {_describe_alerts(store)}")
        with problems.collected():
            for line in (*_pauses(store), *_zone_data(store), *_hosts(store)):
                click.echo(f"  {line}")
        of_others: list[Row] = []
        with problems.collected():
            store.try_rights()
            click.echo("  rights: may be read and written: ok")
            for row in store.rows(Selection(limit=_MOST_SCHEDULES)):
                warn_of_steps(row.key, row.cron)
                if row.run_as is not None:
                    of_others.append(row)
        with problems.collected():
            for line in _run_as(of_others, settings):
                click.echo(f"  {line}")
        with problems.collected():
            for line in _measure(store, settings):
                click.echo(f"  {line}")
    finally:
        store.disconnect()


def _check_replica(settings: Config) -> None:
    """Connect to the replica that psched web reads."""
    if (replica := settings.of_replica) is None:
        return
    store = make_store(replica)
    try:
        facts = retry_while_unavailable(store.examine, clock=CLOCK, tries=_TRIES)
    except PschedError as error:
        raise ConfigError(of_replica(error)) from None
    finally:
        store.disconnect()
    click.echo(f"replica: {replica.safe_url}, which psched web reads: ok")
    _print_facts(facts, replica)


def _print_facts(facts: Iterable[tuple[str, str]], settings: Config) -> None:
    for name, value in facts:
        unverified = name == "encrypted" and is_unverified(settings)
        click.echo(f"  {name}: {value}{', not verified' if unverified else ''}")


def _run_as(rows: Sequence[Row], settings: Config) -> Iterator[str]:
    """Whether this host would start the programs of rows that run as other users."""
    users = sorted({row.run_as for row in rows if row.run_as is not None})
    if not users:
        return
    try:
        refused = dict(refusals(rows, settings))
    except OSError as error:
        raise ConfigError(
            f"run_as: rows run as {', '.join(users)}, but the helper of root cannot be asked"
            f" ({SOCKET}: {error.strerror}): psched install-systemd --run-as installs it, and only"
            " root and the user of the service can ask it"
        ) from None
    yield f"run_as: {', '.join(users)}: {'refused' if refused else 'allowed'}"
    if refused:
        told = [f"{key}: run_as is refused: {why}" for key, why in refused.items()]
        raise ConfigError("\n".join(told))


def _describe_history(store: Store, settings: Config) -> str:
    """Whether a run history is kept, and if not, why."""
    if store.history is None:
        return "not kept: this store cannot keep one"
    if (problem := store.history.problem()) is not None:
        return f"not kept: {problem}"
    return "none (the setting history)" if settings.history == "none" else "kept"


def _describe_output(store: Store, settings: Config) -> str:
    """Whether the output of tasks is kept, and if not, why."""
    if store.output is None:
        return "not kept: this store cannot keep it"
    if (problem := store.output.problem()) is not None:
        return f"not kept: {problem}"
    return (
        "kept" if settings.output in KEPT else f"not kept (the setting output: {settings.output})"
    )


def _describe_alerts(store: Store) -> str:
    """Whether alerts are kept, and if not, why."""
    if store.alerts is None:
        return "not kept: this store cannot keep them"
    problem = store.alerts.problem()
    return "kept" if problem is None else f"not kept: {problem}"


def _zone_data(store: Store) -> Iterator[str]:
    """Yield a line for each host with another release of the zone data than this one."""
    if store.history is None or store.history.problem() is not None:
        return
    seen = store.history.workers(floor(store.now()) - GONE_AFTER)
    alive = [each for each in seen if each.ended is None]
    for host, release in sorted({(each.host, each.zone_data) for each in alive}, key=str):
        if release not in {None, zone.VERSION}:
            yield (
                f"warning: {host} has the zone data tzdata {release}, this host {zone.VERSION};"
                " install the same release on all hosts"
            )


def _hosts(store: Store) -> Iterator[str]:
    """Yield a line for each value of ``hosts`` that nobody serves, and each host with too many."""
    lanes = store.lanes(_MOST_LANES)
    if not lanes or store.history is None or store.history.problem() is not None:
        return
    seen = store.history.workers(floor(store.now()) - GONE_AFTER)
    alive = [each for each in seen if each.ended is None]
    for lane in lanes:
        if not any(each.may_run(lane) for each in alive):
            why = "for each_host" if is_template(lane) else "which some schedules name in hosts"
            yield f"warning: no host that runs {absent(lane, ' ')}, {why}"
    for host, labels in _labels(alive).items():
        if len(labels) > 1:
            yield (
                f"warning: the masters of {host} have different host_labels:"
                f" {' or '.join(sorted(map(' '.join, labels)))}; give them the same"
            )
    patterns = [lane for lane in lanes if lane.startswith("*")]
    for host, each in sorted({each.host: each.host_names for each in alive}.items()):
        if left := lanes_served(each, patterns)[1]:
            yield f"warning: {too_many_lanes(host, left)}"


def _labels(workers: Iterable[WorkerRecord]) -> Mapping[str, set[Sequence[str]]]:
    """The different names and labels that the workers of each host have."""
    found: dict[str, set[Sequence[str]]] = {}
    for each in workers:
        found.setdefault(each.host, set()).add(tuple(each.host_names))
    return found


def _pauses(store: Store) -> Iterator[str]:
    """Yield a line for each pause of a type or of everything that holds now."""
    if store.pauses is not None:
        now = store.now()
        for rule in store.pauses.pause_rules():
            if rule.holds(now):
                yield f"paused: {describe_pause(rule)}"


def _measure(store: Store, settings: Config) -> Iterator[str]:
    """Measure whether the store answers fast enough for the leases; yield the lines to print."""
    answer = min(_seconds(store.now) for _ in range(_TRIES))
    store.disconnect()
    connecting = max(
        0.0,
        _seconds(lambda: retry_while_unavailable(store.now, clock=CLOCK, tries=_TRIES)) - answer,
    )
    yield f"connecting: {connecting * 1000:.3f} ms"
    alive_time, timeout = settings.alive_time, settings.driver_timeout
    longest = lease_times.longest_answer(alive_time, timeout)
    enough = lease_times.sufficient_alive_time(_SAFETY_FACTOR * answer, settings.database_timeout)
    fix = (
        f"set alive_time to {max(enough, alive_time + 1)} or more, or make the store or the"
        " network faster"
    )
    if answer >= longest:
        raise ConfigError(
            f"alive_time: {alive_time} is too short for a store that answers in {answer:.3f} s:"
            f" tasks would be killed although the store answers; {fix}"
        )
    if _SAFETY_FACTOR * answer >= longest:
        yield (
            f"warning: answers take {answer:.3f} s; with alive_time {alive_time}, leases are lost"
            f" when answers take {longest:.3f} s or more; {fix}"
        )
    if connecting >= timeout:
        yield (
            f"warning: connecting takes {connecting:.3f} s, and times out after {2 * timeout:g} s"
            " (twice database_timeout): while the network is slow, a lost connection may not be"
            " restored; raise alive_time, and database_timeout if it is set, or make the network"
            " faster"
        )


def _seconds(request: Callable[[], object]) -> float:
    """Send a request, and return the time that it took, in seconds."""
    begun = CLOCK.monotonic()
    request()
    return CLOCK.monotonic() - begun
