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


# --- secrets that must not occur in the output of tasks ------------------------------


@pytest.mark.parametrize(
    ("settings", "secrets"),
    [
        ({"url": "mysql://u:hunter2@h/x"}, {"hunter2"}),
        ({"url": "mysql://u:p%40ss+1@h/x"}, {"p%40ss+1", "p@ss+1", "p@ss 1"}),
        ({"url": "mysql://u@h/x?ssl_key_passwd=hunter2&charset=utf8mb4"}, {"hunter2"}),
        ({"url": "postgresql://u@h/x?sslpassword=hunter2"}, {"hunter2"}),
        ({"url": "mysql://u:${A}@h/x"}, {"s3cret/A", "s3cret%2FA"}),
        ({"url": "${WHOLE}"}, {"mysql://u:inside@h/x", "inside"}),
        ({"url": "redis://:hunter2@h/0"}, {"hunter2"}),
        ({"type": "redis", "host": "h", "password": "hunter/2"}, {"hunter/2", "hunter%2F2"}),
        ({"type": "redis", "host": "h", "password": "${A}"}, {"s3cret/A", "s3cret%2FA"}),
        (
            {"url": "redis+sentinel://:one1@h:1/n?sentinel_user=u&sentinel_password=two%2F2"},
            {"one1", "two%2F2", "two/2"},
        ),
        (
            {"url": "redis+sentinel://h:1/n?sentinel_password=${A}"},
            {"s3cret/A", "s3cret%2FA"},
        ),
        ({"url": "postgresql://u:${CREDENTIALS_DIRECTORY}/one@h/x"}, {"of a file"}),
        (
            {
                "type": "own:Store",
                "store": {
                    "path": "${CREDENTIALS_DIRECTORY}/two",
                    "server": {"api_key": "k3y", "port": 5, "where": "https://u:p4ss@h/"},
                    "Password": "hunter2",
                    "table": "psched",
                },
            },
            {"of another file", "k3y", "p4ss", "hunter2"},
        ),
        ({"url": "sqlite:////var/a:b@c.db"}, set()),
    ],
)
def test_all_secrets_of_the_configuration_are_known(settings, secrets, tmp_path, monkeypatch):
    monkeypatch.setattr(references, "_credentials", set())
    (tmp_path / "one").write_text("of a file\n")
    (tmp_path / "two").write_text("of another file\n")
    environ = {
        "A": "s3cret/A",
        "WHOLE": "mysql://u:inside@h/x",
        "CREDENTIALS_DIRECTORY": str(tmp_path),
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = from_mapping(settings, environ=environ, cwd=tmp_path).secrets
    # Encoded forms can be among them, too.
    assert secrets <= found
    assert not {each for each in found - secrets if "%" not in each and "+" not in each}
