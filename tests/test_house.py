"""Rules of this repository that no linter checks."""

import re
import runpy
from pathlib import Path

import click
import pytest

from psched.cli.commands import load, psched
from psched.cli.daemon.master import master
from psched.config import SETTINGS
from psched.config.settings import OF_A_TYPE
from psched.process.signals import SIGNALS

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "psched").rglob("*.py"))
DOCS = ROOT / "docs"
RENDERED = {
    path: content
    for program in ("render_settings.py", "render_commands.py")
    for path, content in runpy.run_path(str(DOCS / program))["FILES"].items()
}


def test_a_module_says_first_what_it_holds():
    silent = [path for path in MODULES if not path.read_text().startswith(('"""', 'r"""'))]
    assert silent == []


@pytest.mark.parametrize("name", sorted(psched.commands))
def test_every_command_explains_itself_and_has_an_example(name):
    command = load(name)
    assert command.name == name
    assert command.help
    assert re.search(rf"^psched {name}\b", (DOCS / "commands.md").read_text(), re.MULTILINE)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert (parameter.get_help_record(click.Context(command)) or ("", ""))[1], parameter


@pytest.mark.parametrize("width", [40, 80, 500])
def test_the_list_of_all_commands_says_what_each_says_of_itself(width):
    context = click.Context(
        psched, info_name="psched", terminal_width=width, max_content_width=width
    )
    loaded = click.Group("psched", {name: load(name) for name in psched.commands})
    shown, own = (click.HelpFormatter(width=width) for _ in range(2))

    psched.format_commands(context, shown)
    loaded.format_commands(context, own)

    assert shown.getvalue() == own.getvalue()


COMMANDS = {"psched": psched, "psched-master": master, **dict.fromkeys(psched.commands)}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_fits_a_terminal(name):
    command = COMMANDS[name] or load(name)
    # On a terminal of 80 columns, click leaves two of them free.
    context = click.Context(command, info_name=name, terminal_width=78, max_content_width=78)
    shown = command.get_help(context)
    assert not re.search(r"\x08|\\b", shown)
    assert max(map(len, shown.splitlines())) <= 78
    # A first sentence that does not fit the list of commands is cut, and ends in dots.
    assert not re.search(r"(\.\.\.|…)$", shown.partition("\n\n")[2], re.MULTILINE)


def test_each_signal_and_exit_status_has_lines_of_its_own_in_the_help():
    context = click.Context(master, info_name="psched-master", terminal_width=80)
    text = master.get_help(context)
    for begin in "TERM INT QUIT", "HUP USR1", "USR2", "WINCH", "0 ", "2 ", "65", "70", "75", "78":
        assert re.search(rf"^    {begin} +\S", text, re.MULTILINE)


def test_every_signal_of_the_master_stands_in_its_help_and_on_the_page_of_the_daemon():
    page = (DOCS / "daemon.md").read_text()
    for number in SIGNALS:
        name = number.name.removeprefix("SIG")
        if name != "CHLD":
            assert re.search(rf"\b{name}\b", page)
            assert re.search(rf"\b{name}\b", master.help)


def test_the_page_of_the_table_names_every_column():
    from psched.stores.sql.statements import COLUMNS  # noqa: PLC0415  # SQLAlchemy takes its time

    for column in COLUMNS:
        assert f"`{column}`" in (DOCS / "table.md").read_text()


def test_a_row_has_the_columns_of_the_table_in_their_order():
    from psched.core.model import Row  # noqa: PLC0415
    from psched.stores.sql.statements import COLUMNS  # noqa: PLC0415
    from psched.stores.sql.tables import schedules_table  # noqa: PLC0415

    columns = schedules_table("t").columns
    names = [column.name for column in columns]
    reserved = ["tenant", "priority", "concurrency_key", "checkpoint"]
    assert names == [*COLUMNS, *reserved]
    called = {"key": "id", "owner": "leased_by"}
    assert [called.get(name, name) for name in Row.__slots__] == list(COLUMNS)


def test_the_differences_between_databases_stand_in_one_package():
    asks_by_name = re.compile(
        r"dialect\.name|get_backend_name|== \"(sqlite|mysql|mariadb|postgresql)\""
    )
    asking = {module for module in MODULES if asks_by_name.search(module.read_text())}
    # The configuration knows the schemes of urls.
    assert {str(module.relative_to(ROOT / "psched").parent) for module in asking} == {
        "config",
        "stores/sql/dialects",
    }


def test_only_the_configuration_knows_what_contrib_has():
    """A store of contrib is told from others by `StoreKind`, not by its name."""
    naming = {path for path in MODULES if "rdb_compat" in path.read_text()}
    packages = {path.relative_to(ROOT / "psched").parts[0] for path in naming}
    assert packages == {"config", "contrib"}


@pytest.mark.parametrize("path", [*RENDERED])
def test_the_files_that_are_made_from_the_code_say_what_it_declares(path):
    assert (ROOT / path).read_text() == RENDERED[path](), "run bin/settings"


def test_the_page_of_settings_names_each_of_them_once():
    page = (DOCS / "settings.md").read_text()
    assert re.findall(r"^### `(\w+)`$", page, re.MULTILINE) == [*SETTINGS]


def test_the_page_of_settings_names_those_of_one_schedule():
    page = (DOCS / "settings.md").read_text()
    sentence = page.partition("This is possible for ")[2].partition(".\n")[0]
    assert re.findall(r"`(\w+)`", sentence) == sorted(OF_A_TYPE)


def test_the_repository_names_no_folder_of_anybodys_machine():
    own = re.compile(r"(?<![\w.{}])/(work|root|home/(?!ann\b)\w+)/")
    for path in [
        *MODULES,
        *(ROOT / "docs").rglob("*"),
        ROOT / "README.md",
        *(ROOT / "etc").glob("psched.yml*"),
    ]:
        if path.is_file() and path.suffix not in {".pyc", ".png"}:
            assert not own.search(path.read_text()), path
