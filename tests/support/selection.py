"""Which tests run: what a landing needs, or with ``--extended`` all.

A test that a landing does not need has the mark ``extended``, and its file may have it for all
tests but those with the mark ``landing``. There are marks that imply it:

- ``quiet``, and ``once``, for what ``bin/test --all`` runs on one Python;
- ``twins``, which all tests in tests/e2e and tests/process have, if it needs a server, and the same
  test runs on SQLite;
- ``stores``, which all tests in tests/stores have, and those in tests/contract that need a server,
  unless the stores have changed since ``bin/test --all`` has passed.

Whoever names a file gets all its tests; who names tests/stores, those of the stores.
"""

import hashlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SERVERS = "mariadb", "postgresql", "redis", "galera", "dynamodb"

# The stores repeat names from the first five, such as those of statuses, in statements and scripts.
OF_STORES = (
    "psched/core/model.py",
    "psched/core/columns.py",
    "psched/core/history/records.py",
    "psched/core/alerts/alert.py",
    "psched/core/output.py",
    "psched/stores",
    "psched/contrib/perfectsched",
    "psched/testing/store_contract",
    "tests/stores",
    "tests/contract",
)

TESTS_OF_STORES = ROOT / "tests/stores"

_OF_FOLDERS = {"tests/stores": "stores", "tests/e2e": "twins", "tests/process": "twins"}

RECORD = ROOT / ".ci/last-full-run"
"""What of `bin/test --all` has passed; the last word is `stores_checksum` on the newest Python."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.addoption("--extended", action="store_true", help="run the tests of bin/test --all, too")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what is left out as a whole: it takes seconds of each process."""
    return (collection_path == TESTS_OF_STORES and "stores" in left_out(config)) or None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give all tests of a folder the mark of the folder."""
    folder = str(Path(item.nodeid.partition("::")[0]).parent)
    if mark := _OF_FOLDERS.get(folder):
        item.add_marker(mark)
    elif folder == "tests/contract" and any(mark.name in SERVERS for mark in item.iter_markers()):
        item.add_marker("stores")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a landing does not need."""
    if not (marks_left_out := left_out(config)):
        return
    named = {str(path) for path in _named(config)}
    marks = {item: {mark.name for mark in item.iter_markers()} for item in items}
    on_sqlite = {_function(item) for item in items if marks[item].isdisjoint(SERVERS)}
    selected, deselected = [], []
    for item in items:
        is_left_out = "landing" not in marks[item] and not marks[item].isdisjoint(marks_left_out)
        is_left_out |= (
            "twins" in marks[item]
            and not marks[item].isdisjoint(SERVERS)
            and _function(item) in on_sqlite
        )
        (deselected if is_left_out and str(item.path) not in named else selected).append(item)
    config.hook.pytest_deselected(items=deselected)
    items[:] = selected


def left_out(config: pytest.Config) -> frozenset[str]:
    """The marks of the tests that are left out."""
    if config.getoption("extended"):
        return frozenset()
    named = any(TESTS_OF_STORES in (path, *path.parents) for path in _named(config))
    stores = {"stores"} if not named and _stores_have_passed() else set()
    return frozenset({"extended", "once", "quiet"} | stores)


def _named(config: pytest.Config) -> list[Path]:
    """The files and folders that were asked for."""
    return [Path(word.partition("::")[0]).resolve() for word in config.args]


def _stores_have_passed() -> bool:
    return RECORD.is_file() and RECORD.read_text().split()[-1:] == [stores_checksum()]


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def stores_checksum() -> str:
    """A checksum of the stores' code and of their tests."""
    digest = hashlib.sha256()
    for folder in OF_STORES:
        whole = ROOT / folder
        for path in [whole] if whole.is_file() else sorted(whole.rglob("*")):
            if path.suffix in {".py", ".lua"}:
                digest.update(f"{path.relative_to(ROOT)}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    print(stores_checksum())  # noqa: T201  # for bin/test
