"""A plan is carried out: what is missing in one transaction, the rest one by one.

It is safe to do it again, and for several hosts to do it at once: a change is written only as far
as the schedule still differs when it is written, so that no second hand sets a time anew that the
first has set; and who comes second with what is added plans again.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from psched.base.errors import AlreadyExistsError, NotFoundError, ScheduleError
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.core.columns import annotation
from psched.core.model import Row
from psched.files.plan import Item, Plan, conflict, differences, is_of, plan

_TRIES = 5
"""How often to plan anew because others change the same schedules."""

Tell = Callable[[str, str], None]
"""Is told what was done, ``added`` or ``changed`` or …, and the schedule's key."""


def look(schedules: ScheduleCollection, keys: Iterable[str], label: str | None) -> list[Row]:
    """The schedules that a plan is made of: those under these keys, and those of the label."""
    found = {key: metadata.row for key, metadata in schedules.read_many([*keys]).items()}
    if label is not None:
        # A listing may miss one that runs meanwhile; the wanted ones were read by their keys.
        listed = (metadata.row for metadata in schedules.list())
        found = {row.key: row for row in listed if is_of(row, label)} | found
    return list(found.values())


def look_at_all(schedules: ScheduleCollection, label: str | None = None) -> list[Row]:
    """Every schedule, or every one of a label, none missing because it is just being run."""
    # A listing may miss one whose lease ends meanwhile, but hardly twice.
    keys = dict.fromkeys(each.key for _ in range(2) for each in schedules.list())
    rows = (metadata.row for metadata in schedules.read_many([*keys]).values())
    return [row for row in rows if label is None or is_of(row, label)]


def make_plan(
    schedules: ScheduleCollection,
    wanted: Iterable[Mapping[str, Any]],
    label: str | None,
    *,
    settings: Config,
    adopt: bool = False,
) -> Plan:
    """Compare what is wanted with what there is now; see `psched.files.plan.plan`."""
    declarations = list(wanted)
    existing = look(schedules, (str(each.get("key")) for each in declarations), label)
    return plan(declarations, existing, label, settings=settings, adopt=adopt)


def carry_out(
    made: Plan,
    schedules: ScheduleCollection,
    *,
    settings: Config,
    prune: bool = False,
    tell: Tell = lambda _done, _key: None,
) -> None:
    """Do what a plan says; nothing of it if some of it is refused.

    Args:
        made: the plan.
        schedules: the store's.
        settings: the installation's.
        prune: remove those that are left. One that is running is stopped first, by its worker.
        tell: is told of each when it is done.

    Raises:
        AlreadyExistsError: a key is somebody else's; or was added by somebody else meanwhile.
        NotFoundError: what was to be changed has been deleted meanwhile.
    """
    if made.refused:
        raise AlreadyExistsError("; ".join(f"{key} {why}" for key, why in made.refused.items()))
    if made.added:
        schedules.add_many({"key": item.key, **item.fields} for item in made.added)
        for item in made.added:
            tell("added", item.key)
    for item in made.changed:
        schedules.modify(item.key, partial(_still_differing, item, made, settings))
        tell("changed", item.key)
    for item in made.left if prune else ():
        remove(item.key, made.label, schedules, tell)


def reconcile(
    schedules: ScheduleCollection,
    wanted: Iterable[Mapping[str, Any]],
    label: str | None,
    *,
    settings: Config,
    prune: bool = False,
    adopt: bool = False,
    tell: Tell = lambda _done, _key: None,
) -> Plan:
    """Make the schedules of a label those that are wanted, also while others do the same.

    Args:
        schedules: the store's.
        wanted: see `psched.files.plan.plan`, as for the label and ``adopt``.
        label: whose they are.
        settings: the installation's.
        prune: see `carry_out`, as for ``tell``.
        adopt: take over schedules of another label, or of none.
        tell: is told of each when it is done.

    Returns:
        The plan that was carried out last.

    Raises:
        AlreadyExistsError: a key is somebody else's; nothing was done, unless others were at work.
        InvalidError: a value makes no sense; nothing was done.
    """
    declarations = list(wanted)
    tries = 0
    while True:
        made = make_plan(schedules, declarations, label, settings=settings, adopt=adopt)
        tries += 1
        try:
            carry_out(made, schedules, settings=settings, prune=prune, tell=tell)
        except ScheduleError as error:
            overtaken = isinstance(error, AlreadyExistsError | NotFoundError) and not made.refused
            if not overtaken or tries >= _TRIES:
                raise
        else:
            return made


def _still_differing(item: Item, made: Plan, settings: Config, seen: Row) -> dict[str, Any]:
    """The changes that are still to be written to a row, as it stands now."""
    before = annotation(item.found, "label") if item.found is not None else None
    # What was adopted is what was seen to be adopted, not what others have taken over since.
    adopt = made.adopt and annotation(seen, "label") == before
    if why := conflict(seen, made.label, adopt=adopt):
        raise AlreadyExistsError(f"{item.key} {why}")
    if item.wanted is None:
        return {}
    return {change.field: change.new for change in differences(seen, item.wanted, settings)}


def remove(key: str, label: str | None, schedules: ScheduleCollection, tell: Tell) -> None:
    """Remove a schedule that has been left, if it is still of this label."""
    now = schedules.read_many([key]).get(key)
    if now is None or not is_of(now.row, label):
        return  # somebody else has removed it, or taken it over
    try:
        gone = schedules.delete(key)
    except NotFoundError:
        return
    tell("removed" if gone else "marked", key)
