"""Writes docs/settings.md and etc/psched.yml.example from the declarations of the settings.

`bin/settings` runs it. A test fails if one of the two files is not what is written here.
"""

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from psched.config.kinds import Number
from psched.config.reference import texts
from psched.config.settings import OF_A_TYPE, SECTIONS, SETTINGS

ROOT = Path(__file__).resolve().parent.parent

SHIPPED: Mapping[str, object] = {
    "url": "sqlite:////var/lib/psched/psched.db",
    "create_table": True,
    "alive_time": 60,
    "processors": "auto",
}
"""The values in etc/psched.yml.example that are no defaults of `SETTINGS`."""

HEAD = """\
All settings of psched, with their default values. Settings without a default, or with one that \
depends on the host or on other settings, are commented out and show an example. You can delete \
everything that you do not change.
"""

INTRODUCTION = """\
psched reads the first of these files that exists, and no other:

1. the one named by `-c`
2. the one named by the environment variable `PSCHED_CONFIG`
3. `config/psched.yml`, else PerfectSched's `config/perfectsched.yml`, in the current folder
4. `/etc/psched/psched.yml`

Without a file, psched uses [an SQLite database in your state folder](databases.md#sqlite).

**Durations** are seconds, or have a unit: `30s`, `5m`, `1h`, `30d`. **Sizes** are bytes, or have \
the unit `K`, `M` or `G`, which are powers of 1024: `64K` is 65536. The options of the commands \
and the files of schedules accept the same forms. In Python, a duration can also be a `timedelta`. \
**Relative paths** start from the folder in which psched is started.

**References.** Any value may contain references to something outside the file. Passwords are \
never printed, and tasks do not get the variables that contain them: see \
[Passwords](databases.md#passwords).

- `${NAME}`: the environment variable NAME
- `${CREDENTIALS_DIRECTORY}/NAME`: the content of that file: a secret that systemd passes to the \
service, see `LoadCredential=` in systemd.exec(5)
- `$${`: a plain `${`

**Sections.** A file may also have one section of settings for each environment. `-e` or the \
environment variable `PSCHED_ENV`, else `RAILS_ENV`, chooses the section; the default is \
`development`. YAML lets sections share settings:

    default: &default
      poll_interval: 1s
    production:
      <<: *default
      url: mysql://psched:${CREDENTIALS_DIRECTORY}/password@db.example.com/psched

**One type, one schedule.** A setting of a schedule replaces that of its type, and this replaces \
that of the installation. Set it for a type in `types`; for a schedule in a [file](files.md), in \
the editor of [`psched edit KEY`](operate.md#change-a-schedule), in Python, or, if there is such \
an option, by `psched add` and `psched push`. This is possible for OF_A_TYPE.

**Mistakes.** An unknown key, a value of the wrong type or an impossible combination is refused. \
The message names the file, the line, the key and the fix. So is a number with a zero in front, or \
with colons (`0660`, `1:30`), which YAML reads in another base. PerfectSched's `max_acquire` is \
accepted and has no effect: a worker takes as many rows as it has free slots. `psched check` reads \
the file and tests what it names: handlers, database, clock and rights. `psched check --schema` \
prints a JSON schema, by which editors check a file and complete names.
"""

WIDTH = 100


def introduction() -> str:
    """What stands above the settings, in both files."""
    *others, last = (f"`{name}`" for name in sorted(OF_A_TYPE))
    return INTRODUCTION.rstrip().replace("OF_A_TYPE", f"{', '.join(others)} and {last}")


def written(name: str, value: object) -> str:
    """A value as it is written in a file."""
    kind = SETTINGS[name].kind
    units: Mapping[str, Mapping[str, int]] = {
        "seconds": {"d": 86_400, "h": 3600, "m": 60},
        "bytes": {"G": 2**30, "M": 2**20, "K": 2**10},
    }
    match value:
        case bool():
            return str(value).lower()
        case int() | float() if isinstance(kind, Number):
            for unit, size in units.get(kind.unit, {}).items():
                if value % size == 0 and (value > size or (value == size and unit in "dGMK")):
                    return f"{value // size:g}{unit}"
            return f"{value:g}{'s' if kind.unit == 'seconds' and value else ''}"
        case Mapping():
            return "{}"
        case tuple():
            return "off" if name == "allow_private_addresses" else "[]"
    return str(value)


def bounds(name: str) -> str:
    """Which numbers are valid; empty if every number is, or if the setting is no number."""
    kind = SETTINGS[name].kind
    if not isinstance(kind, Number):
        return ""
    lowest = kind.least if kind.above is None else kind.above
    limits = []
    if kind.above is not None or lowest:
        limits.append(
            f"{'at least' if kind.above is None else 'more than'} {written(name, lowest)}"
        )
    if kind.most < Number().most:
        limits.append(f"at most {written(name, kind.most)}")
    if kind.whole and kind.unit == "seconds":
        limits.insert(0, "whole seconds")
    return ", ".join(limits)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Split a text into paragraphs, lists and code."""
    for part in re.split(r"\n\n", text):
        if part.startswith("    "):
            yield "code", textwrap.dedent(part)
        elif re.match(r"(-|\d+\.) ", part):
            yield "list", part
        else:
            paragraph, newline, items = part.partition("\n- ")
            yield "paragraph", paragraph
            if newline:
                yield "list", f"- {items}"


def example_of(name: str) -> tuple[str, str]:
    """The text of a setting, and apart from it the example with which it ends if there is one."""
    text = texts()[name]
    found = re.search(rf"\s*Example:\s`({name}:[^`]*)`$", text)
    return (text[: found.start()], re.sub(r"\s+", " ", found[1])) if found else (text, "")


# --- docs/settings.md ---


def page() -> str:
    """The content of docs/settings.md."""
    parts = [
        "# Settings",
        "<!-- bin/settings writes this page from psched/config/settings.py. -->",
        "[`etc/psched.yml.example`](../etc/psched.yml.example) contains the same as a file.",
        *as_markdown(introduction()),
    ]
    for name, setting in SETTINGS.items():
        if name in SECTIONS:
            parts.append(f"## {SECTIONS[name]}")
        facts = []
        default = SHIPPED["processors"] if name == "processors" else setting.default
        if default is not None:
            facts.append(f"Default: `{written(name, default)}`")
            if name in SHIPPED and default != SHIPPED[name]:
                facts[0] += f" (`{written(name, SHIPPED[name])}` in `etc/psched.yml`)"
        facts += [limits] if (limits := bounds(name)) else []
        facts += ["for one type or schedule, too"] if setting.per_schedule else []
        text, example = example_of(name)
        parts.append(f"### `{name}`")
        parts += as_markdown(text)
        facts += [f"example: `{example}`"] if example else []
        if facts:
            line = "; ".join(facts)
            parts.append(f"{line[0].upper()}{line[1:]}.")
    return "\n\n".join(parts) + "\n"


def as_markdown(text: str) -> Iterator[str]:
    """The parts of a page: paragraphs in one line, so that no line begins as a list does."""
    for kind, part in blocks(text):
        if kind == "code":
            is_settings = part.partition(":")[0] in SETTINGS
            yield f"```{'yaml' if is_settings else 'text'}\n{part}\n```"
        elif kind == "list":
            items = re.split(r"\n(?=- |\d+\. )", part)
            yield "\n".join(re.sub(r"\s+", " ", item) for item in items)
        else:
            yield re.sub(r"\s+", " ", part)


# --- etc/psched.yml.example ---


def example_file() -> str:
    """The content of etc/psched.yml.example."""
    parts = ["\n#\n".join(as_comment(f"{HEAD}\n{introduction()}"))]
    for name, setting in SETTINGS.items():
        if name in SECTIONS:
            parts.append(f"\n# --- {SECTIONS[name]} ".ljust(WIDTH, "-"))
        text, example = example_of(name)
        notes = [bounds(name), "for one type or schedule, too" if setting.per_schedule else ""]
        note = "; ".join(filter(None, notes))
        comments = [*as_comment(text)]
        comments += [f"# {note[0].upper()}{note[1:]}."] if note else []
        value = SHIPPED.get(name, setting.default)
        lines = [f"#{example}"] if example else []
        lines += [f"{name}: {written(name, value)}"] if value is not None else []
        parts.append("\n".join(comments + lines))
    return "\n\n".join(parts) + "\n"


def as_comment(text: str) -> Iterator[str]:
    """Comments for the parts of a text."""
    for kind, part in blocks(text):
        if kind == "code":
            yield textwrap.indent(part, "#   ", lambda _line: True)
        elif kind == "list":
            items = [plain(item) for item in re.split(r"\n(?=- |\d+\. )", part)]
            yield "\n".join(listed(items))
        else:
            yield wrapped(plain(part), "# ")


def listed(items: list[str]) -> Iterator[str]:
    """The lines of a list; words that are explained stand in a column of their own."""
    words = [item.removeprefix("- ").partition(": ")[0] for item in items]
    width = max(len(word.strip("`")) for word in words) if items[0].startswith("- ") else 0
    for word, item in zip(words, items, strict=True):
        if not item.startswith("- "):
            yield wrapped(item, "#   ", "#      ")
        else:
            begin = f"#   {word.strip('`'):{width}}   "
            text = item.removeprefix(f"- {word}: ")
            yield wrapped(text, begin, "#".ljust(len(begin)))


def wrapped(text: str, begin: str, further: str | None = None) -> str:
    """Break a text into lines."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=begin,
        subsequent_indent=further or begin,
        break_on_hyphens=False,
        break_long_words=False,
    )


def plain(text: str) -> str:
    """A text without Markdown: links name the page, and only commands stand in backquotes."""
    text = re.sub(r"\[([^\]]*)\]\((\w+\.md)[^)]*\)", r"\1 (docs/\2)", text)
    text = re.sub(r"`([^`\s]*)`|\*\*", r"\1", text)
    return re.sub(r"\s+", " ", text)


FILES = {"docs/settings.md": page, "etc/psched.yml.example": example_file}
"""The files that are written, each with the function that returns its content."""

if __name__ == "__main__":
    for path, content in FILES.items():
        (ROOT / path).write_text(content(), encoding="utf-8")
