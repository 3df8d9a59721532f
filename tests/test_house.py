"""Rules of this repository that no linter checks."""

import re
from pathlib import Path

import click
import pytest

from psched.cli.commands import load, psched
from psched.cli.daemon.master import master
from psched.config import SETTINGS
from psched.process.signals import SIGNALS

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "psched").rglob("*.py"))
README = (ROOT / "README.md").read_text()

LONGEST_MODULE = 500
"""Lines; a longer module holds two ideas."""


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_holds_one_idea_and_says_which(module):
    text = module.read_text()
    assert len(text.splitlines()) <= LONGEST_MODULE
    assert text.startswith(('"""', 'r"""')), "the docstring comes first"


@pytest.mark.parametrize("name", sorted(psched.commands))
def test_every_command_explains_itself_and_stands_in_the_readme(name):
    command = load(name)
    assert command.name == name
    assert command.help
    assert re.search(rf"psched (-c \S+ )?{name}\b", README)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


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


def test_every_signal_of_the_master_stands_in_its_help_and_in_the_readme():
    for number in SIGNALS:
        name = number.name.removeprefix("SIG")
        if name != "CHLD":
            assert re.search(rf"\b{name}\b", README)
            assert re.search(rf"\b{name}\b", master.help)


def test_the_table_in_the_readme_names_every_column():
    from psched.stores.sql.statements import COLUMNS  # noqa: PLC0415  # SQLAlchemy takes its time

    for column in COLUMNS:
        assert f"`{column}`" in README


def test_a_row_has_the_columns_of_the_table_in_their_order():
    from psched.core.model import Row  # noqa: PLC0415
    from psched.stores.sql.statements import COLUMNS  # noqa: PLC0415
    from psched.stores.sql.tables import schedules_table  # noqa: PLC0415

    assert list(COLUMNS) == [column.name for column in schedules_table("t").columns]
    assert [name.replace("key", "id", 1) for name in Row.__slots__] == list(COLUMNS)


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


def test_the_settings_that_the_readme_names_exist():
    section = README.partition("| setting | default | |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in section.splitlines()[2:]))
    assert named
    assert set(named) <= set(SETTINGS)


def test_the_repository_names_no_folder_of_anybodys_machine():
    own = re.compile(r"(?<![\w.{}])/(work|root|home/(?!ann\b)\w+)/")
    for path in [
        *MODULES,
        *(ROOT / "docs").rglob("*"),
        ROOT / "README.md",
        ROOT / "etc/psched.yml",
    ]:
        if path.is_file() and path.suffix != ".pyc":
            assert not own.search(path.read_text()), path
