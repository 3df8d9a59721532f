"""The page Queue: how many schedules and tasks of each type have each status."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypedDict

from psched.cli.output import one_line
from psched.cli.schedules.listing import SHOWN_STATES, found_as
from psched.cli.shown import shown_status
from psched.web.actions import links_for_many
from psched.web.asked import Asked, Cell, Page, Table, link
from psched.web.search import HINTS, MOST_READ, QUALIFIERS, Found, parse_search, word_of

_TYPES = 200  # the most types that are listed, those with the most rows first
_QUALIFIED = tuple(f"{name}:" for name in QUALIFIERS)


class QueueDocument(TypedDict):
    """How many schedules and tasks of each type have each status."""

    types: Mapping[str, Mapping[str, int]]
    cut: bool


def queue_page(asked: Asked) -> Page:
    """The page Queue. A number leads to the schedules that it counts."""
    search, now = parse_search(asked.query.get("q", "")), asked.schedules.now()
    # The last runs of all would take long: only a search for failing ones reads them.
    found = Found(asked, search, now, with_last=False)
    counts: dict[str, Counter[str]] = {}
    rows = Counter[str]()
    for row, last in found.rows:
        rows[row.type] += 1
        as_found = found_as(row, shown_status(row, now, last))
        wanted = (each for each in as_found if not search.states or each in search.states)
        counts.setdefault(row.type, Counter()).update(wanted)
    totals = sum(counts.values(), Counter[str]())
    states = [state for state in SHOWN_STATES if totals[state]]
    common = [*map(_quoted, search.keys), *(word_of("label", each) for each in search.labels)]

    def cells(
        name: str, types: Sequence[str], numbers: Mapping[str, int], total: int
    ) -> list[Cell]:
        words = [*common, *(word_of("type", each) for each in types)]
        # With a blank and a quote, a type cannot be searched.
        can_be_found = parse_search(" ".join(words)).types == tuple(types)

        def cell(number: int, wanted: Sequence[str]) -> Cell:
            chosen = [*words, *(f"state:{state}" for state in wanted)]
            return Cell(
                str(number) if number else "",
                link("schedules", q=" ".join(chosen)) if number and can_be_found else "",
            )

        of_states = [cell(numbers.get(state, 0), [state]) for state in states]
        return [Cell(name), *of_states, cell(total, search.states)]

    shown = [name for name, _ in sorted(rows.items(), key=lambda each: (-each[1], each[0]))]
    listed = [cells(one_line(each), [each], counts[each], rows[each]) for each in shown[:_TYPES]]
    if len(rows) > 1:
        listed.append(cells("all types", search.types, totals, rows.total()))
    values = {
        "title": "Queue",
        "q": search.text,
        "hints": HINTS,
        "table": Table(["TYPE", *(state.upper() for state in states), "ALL"], listed),
        "others": max(0, len(rows) - _TYPES),
        "cut": f"{MOST_READ:,}" if found.is_cut else "",
        "actions": links_for_many(asked, search.text, ["requeue", "cancel"]),
    }

    def document() -> QueueDocument:
        return {"types": {name: dict(counts[name]) for name in shown}, "cut": found.is_cut}

    return Page("queue", values, document)


def _quoted(key: str) -> str:
    """A key as text of a search, also if it begins as a qualifier does."""
    is_word = not any(map(str.isspace, key)) and not key.startswith(_QUALIFIED)
    return key if is_word else f'"{key}"'
