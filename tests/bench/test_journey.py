"""A task and a command go through no more files than they do now, within a little slack.

`bench/journey.py` says how far these limits are above the ceilings that are aimed at.
"""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"

LIMITS = {
    "worker": {"files": 46, "calls": 350, "depth": 19},
    "runner": {"files": 16, "calls": 45, "depth": 11},
    "add": {"files": 54, "modules": 110},
    "list": {"files": 51, "modules": 110},
    "help": {"files": 12, "modules": 25},
}


def test_a_journey_gets_no_longer():
    done = subprocess.run(
        [sys.executable, BENCH / "journey.py", "--short"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)["databases"]["sqlite"]
    for journey, limits in LIMITS.items():
        measured = {name: found[journey][name] for name in limits}
        assert all(measured[name] <= limit for name, limit in limits.items()), (journey, measured)
        # A limit far above what is measured would let a journey grow.
        assert measured["files"] >= 0.85 * limits["files"], "lower the limit"
    for ratio in found["list"]["of_sqlalchemy"], found["status"]["of_help"]:
        assert 0.5 < ratio < 10
