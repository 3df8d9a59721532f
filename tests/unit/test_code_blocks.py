"""Every fenced block of code in the documentation is run, read by psched itself, or type-checked.

A block that no test can check has the mark ``<!-- unchecked: REASON -->`` above it.
"""

import configparser
import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import click
import pytest
import yaml

from psched.base.exec_data import check_declared_exec
from psched.cli.commands import psched
from psched.cli.daemon.master import master
from psched.config import SETTINGS, from_mapping, load
from psched.files.document import Reader
from support.code_blocks import (
    OF_SERVERS,
    PAGES,
    ROOT,
    SERVER_SQL,
    Block,
    all_blocks,
    blocks_of,
    command_lines,
    free_names,
    psched_arguments,
    sql_blocks,
)
from support.waiting import HANG_TIMEOUT

BLOCKS = all_blocks()

NOT_CODE = {
    "text": "what a program prints, or a drawing; the commands in it are parsed",
    "{toctree}": "built by bin/docs",
    "{eval-rst}": "built by bin/docs",
}
"""Languages of blocks that are no code, and why."""

LANGUAGES = {"python", "yaml", "sh", "console", "sql", "ini", "json", "dockerfile"}

RUNS_NO_MORE = ("psched.start(", "Worker.run(", ".wait", "import pytest")
"""What is in Python code that needs a worker, or becomes a daemon, and so is not run here."""

RUN_ELSEWHERE = {"frameworks.md"}
"""The page whose Python code is programs, which tests of their own run: tests/e2e/test_testing.py
and tests/e2e/test_frameworks.py."""

OTHER_FILES = {"apiVersion", "services", "spec", "jobs", "scrape_configs"}
"""Keys at the top of YAML that other programs read."""


def of(*languages):
    """The blocks in these languages that have no mark, as parameters."""
    chosen = [each for each in BLOCKS if each.language in languages and each.unchecked is None]
    return pytest.mark.parametrize("block", chosen, ids=lambda block: block.place)


def test_every_block_has_a_language_that_a_test_checks():
    known = {*LANGUAGES, *NOT_CODE}
    assert [each.place for each in BLOCKS if each.language not in known] == []
    assert {each.language for each in BLOCKS} >= LANGUAGES


def test_no_fence_is_left_open():
    for page in {block.page for block in BLOCKS}:
        found = [each for each in BLOCKS if each.page == page]
        assert len(re.findall(r"^ *```", page.read_text(), re.MULTILINE)) == 2 * len(found), page


# --- commands ---


def parse(program, arguments):
    """Parse a command line with psched's real commands; raises click.UsageError."""
    if program == "psched-master":
        master.make_context("psched-master", list(arguments)).close()
        return
    context = psched.make_context("psched", list(arguments))
    name, command, rest = psched.resolve_command(context, [*context._protected_args, *context.args])
    # An option such as --zone changes this process until its context is closed.
    command.make_context(name, rest, parent=context).close()
    context.close()


def commands_in(block):
    """The command lines of psched in a block, as pairs of program and arguments."""
    text = block.text
    if block.language == "console":
        text = "\n".join(re.findall(r"^\$ (.*)", text, re.MULTILINE))
    elif block.language == "text":
        names = "|".join(sorted(psched.commands))
        text = "\n".join(re.findall(rf"^ *(psched (?:{names}) .*)", text, re.MULTILINE))
    for words in command_lines(text):
        found = psched_arguments(words)
        if found is not None:
            yield found


def check_command(program, arguments):
    try:
        parse(program, arguments)
    except click.exceptions.Exit:
        pass  # --help
    except click.UsageError as error:
        pytest.fail(f"{program} {' '.join(arguments)}: {error.format_message()}")


@of("sh", "console", "text")
def test_every_command_line_can_be_parsed(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for program, arguments in commands_in(block):
        check_command(program, arguments)


@of("sh")
def test_shell_code_is_valid(block):
    checked = subprocess.run(
        ["bash", "-n"], input=block.text, text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    "wrong",
    [
        "psched lsit",
        "psched list --stauts failed",
        "psched add",
        "PSCHED_CONFIG=x sudo -u psched /opt/psched/bin/psched -c x lsit",
        "cat <<'END'\npsched\nEND\npsched lsit",
        "true && psched lsit # why",
    ],
)
def test_a_wrong_command_line_is_found(wrong):
    [(program, arguments)] = commands_in(Block(ROOT, 1, "sh", wrong, None))
    with pytest.raises(click.UsageError):
        parse(program, arguments)


# --- configurations and files of schedules ---


@pytest.fixture
def etc(tmp_path):
    """A folder with the files that configurations name, in place of /etc/psched."""
    for name in "password", "ca.pem", "client.pem", "client.key":
        (tmp_path / name).write_text("secret\n")
        (tmp_path / name).chmod(0o600)
    return tmp_path


def read_settings(text, etc):
    """Read settings as psched does, with /etc/psched and the environment of a service."""
    file = etc / "psched.yml"
    file.write_text(text.replace("/etc/psched/", f"{etc}/"))
    environ = {
        "HOME": str(etc),
        **dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "secret"),
        "SLACK_URL": "https://hooks.slack.com/secret",
        "CREDENTIALS_DIRECTORY": str(etc),
    }
    load(file, environ=environ, cwd=etc)


def argument_lists(value):
    """The command lines of psched among the lists of texts in a value of YAML or JSON."""
    if isinstance(value, dict):
        for each in value.values():
            yield from argument_lists(each)
    elif isinstance(value, list):
        found = psched_arguments(value) if all(isinstance(each, str) for each in value) else None
        if found is not None:
            yield found
        for each in value:
            yield from argument_lists(each)


@of("yaml")
def test_yaml_is_what_psched_reads(block, etc):
    # Alternatives, which are numbered, are files of their own.
    for text in re.split(r"^(?=# \d+\. )", block.text, flags=re.MULTILINE):
        for document in yaml.safe_load_all(text):
            if "schedules" in document:
                reader = Reader(from_mapping({"url": "sqlite:///psched.db"}), now=lambda: 0)
                reader.read_text(text, Path("schedules.yml"))
                assert reader.documents()
            elif OTHER_FILES & {*document}:
                for program, arguments in argument_lists(document):
                    check_command(program, arguments)
            else:
                read_settings(text, etc)


MYSQL = "url: mysql://ann@db/x"
PAIR = f"{MYSQL}\nssl_ca: /etc/psched/ca.pem\n"
BESIDE = {
    "db: 2": "type: redis",
    "host: redis.example.com": "type: redis",
    "password: ${REDIS_PASSWORD}": "type: redis",
    "path: /run/redis/redis-server.sock": "type: redis",
    "port: 6380": "type: redis",
    "password_file: /etc/psched/password": MYSQL,
    "script_class: Run": "script: run.py",
    "ssl_ca: /etc/psched/ca.pem": MYSQL,
    "read_url: mysql://replica.example.com/psched": MYSQL,
    "ssl_cert: /etc/psched/client.pem": f"{PAIR}ssl_key: /etc/psched/client.key",
    "ssl_key: /etc/psched/client.key": f"{PAIR}ssl_cert: /etc/psched/client.pem",
    "ssl_verify: full": PAIR,
    "store: {path: /var/lib/psched/schedules.json}": "type: filestore:FileStore",
    "wake: notify": "url: redis://h",
    "wait_replicas: 1": "url: redis://h",
    "type: rdb_compat": "url: mysql://db/x\ntable: schedules",
    "on_failed: ops": "hooks: {ops: {mail: ann}}",
    "on_failed: mail-ops-example-org": "hooks: {mail-ops-example-org: {mail: ann}}",
    "ssl_verify: ca": PAIR,
    "password_file: ${CREDENTIALS_DIRECTORY}/password": MYSQL,
}
"""Settings in the text of pages that need others beside them."""


def settings_in_text():
    """The settings with their values that stand in the sentences and tables of pages."""
    for page in PAGES:
        text = re.sub(r"(?ms)^ *```.*?^ *```", "", page.read_text())
        for setting in re.findall(r"(?<!`)`(\w+: [^`\n]+)`(?!`)", text):
            if setting.partition(":")[0] in SETTINGS:
                yield setting


@pytest.mark.parametrize("setting", sorted({*settings_in_text()}))
def test_a_setting_in_a_sentence_is_what_psched_reads(setting, etc):
    read_settings(f"{setting}\n{BESIDE.get(setting, '')}\n", etc)


@of("json")
def test_json_is_data_of_the_type_exec_if_it_names_a_command(block):
    data = json.loads(block.text)
    if "command" in data:
        check_declared_exec(data)


@of("dockerfile")
def test_the_commands_of_a_dockerfile_exist(block):
    lists = re.findall(r"(?:CMD|ENTRYPOINT) (\[.*\])", block.text.replace("\\\n", " "))
    assert lists
    for each in lists:
        for program, arguments in argument_lists(json.loads(each)):
            check_command(program, arguments)


@of("ini")
def test_units_are_sections_of_settings_and_their_commands_exist(block):
    # Each file begins with its name.
    for text in re.split(r"^(?=# /)", block.text, flags=re.MULTILINE):
        units = configparser.RawConfigParser(strict=False)
        units.read_string(text)
        for section in units.sections():
            for name, value in units[section].items():
                if name.startswith("exec"):
                    for words in command_lines(value):
                        found = psched_arguments(words)
                        if found is not None:
                            check_command(*found)


# --- SQL ---


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """An SQLite file with psched's tables."""
    folder = tmp_path_factory.mktemp("sql")
    (folder / "psched.yml").write_text("url: sqlite:///psched.db\n")
    program = [sys.executable, "-m", "psched", "-c", "psched.yml"]
    subprocess.run([*program, "init"], check=True, cwd=folder, capture_output=True)
    return folder / "psched.db"


def test_tests_with_servers_execute_the_sql_that_sqlite_cannot_execute():
    pages = {each.page.name for each in sql_blocks() if OF_SERVERS.search(each.text)}
    assert pages == {*SERVER_SQL}
    for page, tests in SERVER_SQL.items():
        assert f' = server_sql("{page}")\n' in (ROOT / tests).read_text()


@of("sql")
@pytest.mark.slow
def test_sql_works_on_the_tables_that_psched_makes(block, database):
    if OF_SERVERS.search(block.text):
        return  # see SERVER_SQL
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(f"BEGIN; {block.text}; ROLLBACK;")


# --- Python ---

GIVEN = {
    "schedules": "schedules: psched.ScheduleCollection",
    "rows": "rows: list[int]",
    "tick": "def tick() -> None: ...",
    "engine": "engine: sqlalchemy.Engine",
    "orders": "orders: sqlalchemy.Table",
    "order": "order: dict[str, int]",
}
"""Names that the text around a block introduces, and their declarations."""


@of("python")
def test_python_uses_only_names_that_it_or_its_page_defines(block):
    assert free_names(block.text) <= {*GIVEN, "psched", "__file__"}


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """A folder with the modules that examples import: those of other examples."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "filestore.py").write_text((ROOT / "docs/examples/filestore.py").read_text())
    page = ROOT / "docs/tasks.md"
    dispatch = next(each for each in blocks_of(page, page.read_text()) if each.language == "python")
    jobs = next(each for each in blocks_of(page, page.read_text()) if "# jobs.py\n" in each.text)
    (folder / "jobs.py").write_text(jobs.text)
    (folder / "myapp").mkdir()
    (folder / "myapp/__init__.py").touch()
    (folder / "myapp/schedules.py").write_text(dispatch.text)
    (folder / "psched.yml").write_text("url: sqlite:///psched.db\n")
    return folder


@pytest.mark.slow
@of("python")
def test_python_runs(block, modules, database):
    runs_no_more = any(word in block.text for word in RUNS_NO_MORE)
    is_incomplete = free_names(block.text) - {"schedules"}
    if runs_no_more or is_incomplete or block.page.name in RUN_ELSEWHERE:
        compile(block.text, block.place, "exec")
        return
    (modules / "psched.db").write_bytes(database.read_bytes())
    head = (
        'import psched\nschedules = psched.open("psched.yml").__enter__()\n'
        'for _key in ("backup", "nightly-0"): schedules.add(_key, "exec", cron="@daily",'
        ' data={"command": ["true"]})\n'
    )
    script = (head if "schedules" in free_names(block.text) else "") + block.text
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=modules,
        env={"PATH": os.environ["PATH"], "HOME": str(modules)},
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.extended
def test_python_has_the_right_types(modules, tmp_path):
    named = {}
    for number, block in enumerate(each for each in BLOCKS if each.language == "python"):
        # The modules of pages that are run elsewhere are others than those of the pages here.
        if block.unchecked is None and block.page.name not in RUN_ELSEWHERE:
            file = tmp_path / f"block_{number}.py"
            given = [GIVEN[name] for name in sorted(free_names(block.text) & {*GIVEN})]
            # On one line, so that a line of the file is a line of the block.
            head = ["import psched, sqlalchemy", "from typing import Any"]
            file.write_text("\n".join([*head, *given, block.text]))
            named[file.name] = block.place
    configuration = tmp_path / "mypy.ini"
    configuration.write_text("[mypy]\ncheck_untyped_defs = true\nignore_missing_imports = true\n")
    checked = subprocess.run(
        [
            *[sys.executable, "-m", "mypy", f"--config-file={configuration}", "--no-incremental"],
            *["--follow-imports=silent", "--no-error-summary", *named],
        ],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": f"{modules}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [
        f"{named.get(line.partition(':')[0], '')}: {line}" for line in checked.stdout.splitlines()
    ]
    assert errors == [], "\n".join(errors)
    assert (checked.returncode, checked.stderr) == (0, "")
