"""Every benchmark completes in its short form, and its counts are right; how fast is no matter."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"

RATE = {"per_second": float}
COSTS = {
    **RATE,
    **dict.fromkeys(("cpu_ms", "own_cpu_ms", "page_faults", "idle_share", "rss_mib"), float),
}
FLOOR = {**COSTS, "processes": 1}
FLOORS = {**COSTS, "processes": 4}
OF_DB = {"of_floor_db": float, "cpu_of_floor_db": float}
OF_LEAN = {"of_floor_lean": float, "cpu_of_floor_lean": float}
OF_FORK = {"of_floor_fork": float, "cpu_of_floor_fork": float}
TASKS = {**COSTS, **OF_DB, **OF_FORK, **OF_LEAN, "of_best": float, "cpu_of_best": float}
LATENESS = {
    f"{what}_ms_{name}": float for what in ("late", "bare") for name in ("p50", "p99", "max")
}
FLEET = {
    **{
        f"{who}_{what}_mib": float
        for who in ("worker", "fork_server", "collector", "idle_runner", "busy_runner")
        for what in ("pss", "private")
    },
    "all_pss_mib": float,
    "master_pss_mib": float,
}
CLAIMS = {
    "rows_claimed_per_second": float,
    "claim_ms_p50": float,
    "claim_ms_p99": float,
    "settle_ms_p50": float,
    "idle_claim_ms_p50": float,
}
SIZE = {**RATE, **CLAIMS, "tasks": 20, "task_ratio": float, "claim_ratio": float}
READS = dict.fromkeys(
    ("history_of_a_key", "newest", "covering", "trim_a_key", "claim", "settle"), float
)
BULK = {
    f"{who}{what}": float for who in ("", "driver_", "rows_alone_") for what in ("ms", "cpu_ms")
} | {"of_driver": float, "of_rows_alone": float}
HELD = {
    **RATE,
    "cpu_ms": float,
    "claim_ms_p50": float,
    "claim_ms_p99": float,
    "claim_ms_max": float,
}
RECOVERY = {"next_start_s": float, "last_sign_s": float, "runs": 2}

SHIPPED = (float, float)
"""Workers and slots of the settings as shipped."""

FOUND = {
    "tasks": {
        "floor_db": {**FLOORS, **OF_FORK, **OF_LEAN},
        "floor_fork": {**FLOORS, **OF_DB, **OF_LEAN},
        "floor_lean": {**FLOORS, **OF_DB, **OF_FORK},
        "durability": {"synchronous": "FULL"},
        **{
            f"{what}_{layout}": {**TASKS, "tasks": tasks, "workers": workers, "concurrency": slots}
            for what, tasks in (("fresh", 40), ("reused", 160), ("exec", 40))
            for layout, workers, slots in (("1x1", 1, 1), ("shipped", *SHIPPED))
        },
    },
    "bulk": {"add_many": BULK, "push_many": BULK},
    "due": {
        "claims": {"rows_per_second": float, "rows": 500, "of_driver": float},
        "driver": {"rows_per_second": float, "rows": 500},
    },
    "expectations": {
        name: {
            "statements_per_minute": float,
            "ms_per_minute": float,
            **{f"step_ms_{each}": float for each in ("p50", "p99", "max")},
        }
        for name in ("nothing", "active", "silent")
    },
    "paused": {
        "search": {
            "pushed_ms": float,
            "seconds": float,
            "claim_ms_p50": float,
            "claim_ms_p99": float,
            "claim_ms_max": float,
        },
        "claims": {"ms_p50": float, "ms_p99": float, "ms_max": float, "above_idle": float},
        "idle": {"ms_p50": float, "ms_p99": float, "ms_max": float},
    },
    "punctual": {
        "each_second": {
            **LATENESS,
            "above_bare_ms_p50": float,
            "above_bare_ms_p99": float,
            "tasks": 2,
        },
        "beside_a_flood": {
            **LATENESS,
            "above_bare_ms_p50": float,
            "above_bare_ms_p99": float,
            "tasks": 2,
            "printed_per_second": float,
        },
        "herd": {
            "40": {
                **RATE,
                "first_start_ms": float,
                "last_start_s": float,
                "above_throughput_ms": float,
                "out_of_order": float,
                "tasks": 41,
            }
        },
    },
    "pickup": {
        wake: {
            **{
                f"from_{what}_ms_{each}": float
                for what in ("commit", "call")
                for each in ("p50", "p99", "max")
            },
            "tasks": 3,
        }
        for wake in ("off", "local")
    },
    "idle": {
        "look_floor": FLOOR,
        "idle": {
            "cpu_percent": float,
            "of_look_floor": float,
            "master_cpu_percent": float,
            "worker_cpu_percent": float,
            "worker_wakes_per_second": float,
            "processes": 6,
            "monitor_cpu_percent": float,
            "monitor_wakes_per_second": float,
            "monitor_private_mib": float,
            "growth_kib": float,
            "watched_for_s": 1,
        },
    },
    "memory": {
        "interpreter": {"pss_mib": float, "private_mib": float, "rss_mib": float},
        "few": {**FLEET, "tasks": 9},
        "many": {**FLEET, "tasks": 10},
        "worker_and_runner_pss_mib": float,
    },
    "list": {
        **{name: {"ms": float, "rows": 2} for name in ("status", "type", "label", "due")},
        **{name: {"ms": float, "rows": 2} for name in ("running", "type and status")},
        **{name: {"ms": float, "rows": 20} for name in ("wide type", "wide status")},
        "prefix": {"ms": float, "rows": 11},
    },
    "history": {
        **{
            f"{layout}_none": {**RATE, "own_cpu_ms": float, "records": 0}
            for layout in ("fresh", "reused")
        },
        **{
            f"{layout}_all": {
                **RATE,
                "own_cpu_ms": float,
                "records": 1,
                "per_second_of_none": float,
                "own_cpu_ms_of_none": float,
            }
            for layout in ("fresh", "reused")
        },
        "verify": {"ms": float, "own_cpu_ms": float, "schedules": 64},
        "large": {"of_0": READS, "of_2000": READS},
    },
    "peers": {
        "floor_db": {**FLOORS, **OF_FORK, **OF_LEAN},
        "floor_fork": {**FLOORS, **OF_DB, **OF_LEAN},
        "floor_lean": {**FLOORS, **OF_DB, **OF_FORK},
        **{
            f"psched_{what}_shipped": {
                **COSTS,
                **OF_DB,
                **OF_FORK,
                **OF_LEAN,
                "tasks": tasks,
                "settings": dict.fromkeys(("acknowledged", "durable", "process"), str),
            }
            for what, tasks in (("fresh", 40), ("reused", 160), ("exec", 40))
        },
        "durability": {"synchronous": "FULL"},
        "servers": {},
        "packages": {},
    },
    "snapshot": {
        "batches": float,
        "batch": 40,
        **{
            when: {
                "beside": HELD,
                "alone": HELD,
                "of_alone": float,
                "cpu_of_alone": float,
            }
            for when in ("first", "last")
        },
    },
    "size": {"1000": SIZE, "3000": SIZE},
    "recovery": {"worker": RECOVERY, "runner": RECOVERY},
    "startup": {
        "python": {"ms": float},
        "list": {"ms": float, "rows": 10, "above_python_ms": float},
        "master": {"ms": float, "tasks": 1, "above_python_ms": float},
    },
    "web": {
        page: {"ms": float, "own_cpu_ms": float, "bytes": float}
        for page in (
            *("timeline of 12 h", "timeline of 2 weeks", "timeline as JSON", "now", "schedules"),
            *("schedule", "occurrence", "runs"),
        )
    },
}
"""What each finds on a database: numbers, texts, or just these where something is counted."""


def measured(name, *options):
    """What a benchmark prints, for a database."""
    done = subprocess.run(
        [sys.executable, BENCH / f"{name}.py", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def has_shape(found, wanted):
    """Whether figures are there, all of them and no others, and counts are right."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(
            has_shape(found[name], wanted[name]) for name in wanted
        )
    if wanted in {float, str}:
        return isinstance(found, {float: int | float, str: str}[wanted])
    return found == wanted


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "startup" else pytest.mark.extended) for name in FOUND],
)
def test_a_benchmark_runs_every_task_once_and_prints_its_figures(name, tmp_path):
    told = measured(name, "--short", "--databases", "sqlite", "--folder", tmp_path)
    assert told["benchmark"] == name
    assert told["host"].keys() == {"python", "cores", "load_before", "filesystem"}
    assert told["options"].items() >= {"short": True, "rounds": 1}.items()
    assert has_shape(told["databases"], {"sqlite": FOUND[name]}), told
    assert [*tmp_path.iterdir()] == []


@pytest.mark.mariadb
@pytest.mark.extended
@pytest.mark.parametrize("kind", ["redis", "postgresql"])
def test_tasks_are_measured_on_each_database(kind):
    told = measured("tasks", "--short", "--databases", kind, "--layouts", "1x1")
    figures = told["databases"][kind]
    assert figures["reused_1x1"]["tasks"] == 160
    assert all(figures["durability"].values())
    assert figures["floor_lean"]["rss_mib"] < figures["floor_fork"]["rss_mib"] / 2
    assert figures["reused_1x1"]["page_faults"] < figures["fresh_1x1"]["page_faults"] / 5


@pytest.mark.extended
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ],
)
def test_every_page_is_measured_over_tables_that_sql_has_filled(kind):
    told = measured("web_large", "--short", "--databases", kind)
    figures = told["databases"][kind]
    assert figures.pop("filled_seconds") > 0
    assert len(figures) > 20
    page = {"ms": float, "own_cpu_ms": float, "peak_mib": float, "bytes": float, "status": 200}
    assert has_shape(figures, dict.fromkeys(figures, page)), told


@pytest.mark.extended
def test_the_table_has_a_row_for_all_that_was_measured(tmp_path):
    options = ["--short", "--rounds", "1", "--peers", "--databases", "sqlite"]
    command = [sys.executable, BENCH / "table.py", *options, "--folder", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    when, _, head, line, *rows = done.stdout.splitlines()
    assert "cores" in when
    assert {row.count("|") for row in (head, line, *rows)} == {head.count("|")}
    names = [row.split("|")[1].strip() for row in rows]
    floors = {f"{kind}: floor {each}" for kind in ("mariadb", "sqlite") for each in ("db", "lean")}
    assert floors < {*names}
    assert "mariadb: psched reused shipped" in names
    assert "sqlite: fresh shipped" in names


@pytest.mark.extended
def test_a_benchmark_runs_on_a_server_that_counts_queries(mariadb_server):
    url = mariadb_server.url(mariadb_server.create_database())
    told = measured("idle", "--short", "--databases", "mariadb", "--url", url)
    asked = {**FOUND["idle"]["idle"], "queries_per_worker_and_poll": float}
    floor = {name: what for name, what in FLOOR.items() if name != "cpu_ms"}
    wanted = {"look_floor": floor, "idle": asked}
    assert has_shape(told["databases"], {"mariadb": wanted}), told


@pytest.mark.extended
def test_claims_are_measured_by_themselves():
    told = measured("claims", "--databases", "sqlite", "--sizes", "1000", "--runs", "1")
    [figures] = told["databases"]["sqlite"]["strategies"]["cas"].values()
    assert has_shape(figures, {**CLAIMS, **{f"{name}_ratio": float for name in CLAIMS}})


def test_a_layout_says_which_settings_are_given_and_which_are_as_shipped():
    layouts = ("shipped", "4x1", "2x16,cgroup=off,poll_interval=0.5")
    code = f"import json, tasks; print(json.dumps([*map(tasks.settings_of, {layouts})]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCH, capture_output=True, check=True)
    assert json.loads(done.stdout) == [
        {"processors": None, "concurrency": None},
        {"processors": 4, "concurrency": 1},
        {"processors": 2, "concurrency": 16, "cgroup": "off", "poll_interval": 0.5},
    ]


def test_each_peer_states_what_matters_and_its_version():
    told = "{name: dict(peer.settings) for name, peer in peers.PEERS.items()}"
    code = f"import json, peers; print(json.dumps({told}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCH, capture_output=True, check=True)
    stated = json.loads(done.stdout)
    lines = (BENCH / "peers.txt").read_text().lower().splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    assert {name.partition("_")[0] for name in stated} <= pinned
    for settings in stated.values():
        assert settings.keys() == {"acknowledged", "durable", "process"}
        assert all(settings.values())


def test_what_was_not_run_or_run_twice_is_noticed():
    code = """
import fleet
for ran, wanted in ("aab", "ab"), ("a", "ab"), ("ac", "a"), ("ba", "ab"):
    try:
        fleet.once(ran, wanted)
    except AssertionError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCH, capture_output=True, check=True)
    assert done.stdout.splitlines() == [
        b"missed: [], too often or strange: ['a']",
        b"missed: ['b'], too often or strange: []",
        b"missed: [], too often or strange: ['c']",
    ]
