"""Secrets of psched's own configuration are hidden in what tasks print."""

import shutil
import signal
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    "password",
    [
        pytest.param("s3cr3t-of-the-store", id="plain", marks=pytest.mark.extended),
        pytest.param("${STORE_SECRET}", id="variable", marks=pytest.mark.extended),
        pytest.param("${CREDENTIALS_DIRECTORY}/secret", id="credential"),
    ],
)
def test_the_secrets_of_the_configuration_are_hidden_in_every_generation(make_service, password):
    service = make_service("")
    shutil.copy(DOCS / "examples/filestore.py", service.folder)
    service.write("secret", "s3cr3t-of-the-store\n")
    service.env |= {
        "STORE_SECRET": "s3cr3t-of-the-store",
        "CREDENTIALS_DIRECTORY": str(service.folder),
    }
    store = {"path": str(service.folder / "schedules.json"), "password": password}
    # "service", because this store keeps no output.
    service.configure(url=None, type="filestore:FileStore", store=store, output="service")
    assert service.psched("init").returncode == 0
    master = service.start()
    for generation in 1, 2:
        script = f'{{"command": ["echo", "{generation}: s3cr3t-of-the-store"]}}'
        done = service.psched("push", f"key{generation}", "exec", script)
        assert done.returncode == 0, done.stderr
        master.wait_for_log(rf"key{generation}: {generation}: \*\*\*\n")
        master.send(signal.SIGHUP)
        master.wait_for_generation(generation + 1)
    assert master.stop() == 0
    assert "s3cr3t" not in master.text
