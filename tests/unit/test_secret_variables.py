"""Tests that environment variables with secrets are not passed to tasks."""

import os

import pytest

from psched.base.errors import ConfigError
from psched.config import from_mapping, load, references, withhold


@pytest.mark.parametrize(
    ("settings", "withheld"),
    [
        ({"url": "mysql://${U}:${A}${B}@${H}:${P}/${D}?x=${X}"}, {"A", "B", "X"}),
        ({"url": "mysql://${U}@${H}/psched"}, set()),
        ({"url": "mysql://u@${H}/psched?x=${X}"}, {"X"}),
        ({"url": "mysql://u:x@${H},${I}/psched"}, set()),
        ({"url": "${WHOLE}"}, {"WHOLE"}),
        ({"url": "mysql://${REST}"}, {"REST"}),
        ({"url": "redis://:${A}@h/0"}, {"A"}),
        ({"url": "redis+sentinel://h:1/n?sentinel_password=${A}"}, {"A"}),
        ({"url": "sqlite:///${HOME}/psched.db"}, set()),
        ({"url": "mysql://u:$${A}@h/psched"}, set()),
        ({"type": "redis", "host": "${H}", "password": "${A}"}, {"A"}),
        ({"type": "own:Store", "store": {"path": "${B}", "token": "x${A}"}}, {"A", "B"}),
        ({"log": "${L}", "exec": ["work", "${E}"]}, set()),
    ],
)
def test_variables_in_which_a_secret_may_stand_are_known(settings, withheld, tmp_path):
    environ = dict.fromkeys("UABHPDXILE", "1")
    environ |= {
        "HOME": str(tmp_path),
        "WHOLE": "mysql://u:p@h/psched",
        "REST": "u:p@h/psched",
        "L": "log",
    }
    config = from_mapping(settings, environ=environ, cwd=tmp_path)
    assert config.withheld == withheld
    assert config.with_settings(processors=2).withheld == withheld


def test_what_is_withheld_is_not_in_the_environment_and_still_understood(tmp_path, monkeypatch):
    monkeypatch.setattr(references, "_withheld", {})
    monkeypatch.setenv("SECRET", "s3cret")
    monkeypatch.setenv("PSCHED_CONFIG", str(tmp_path / "psched.yml"))
    (tmp_path / "psched.yml").write_text("url: mysql://u:${SECRET}@h/psched\n")
    withhold(load().withheld)
    assert "SECRET" not in os.environ
    assert "s3cret" in load().url
    # The variable is not added to an environment that the caller passes.
    with pytest.raises(ConfigError, match="SECRET, which is not set"):
        load(environ={"PSCHED_CONFIG": str(tmp_path / "psched.yml")})
