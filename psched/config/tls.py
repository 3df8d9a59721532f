"""The settings for TLS (encrypted connections), combined in one `Tls` object."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SETTINGS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify")
"""The names of the settings for TLS."""

VERIFY = ("full", "ca", "none")
"""The values of the setting ``ssl_verify``. They select what psched checks when it connects to a
server: the server's certificate and name (``full``), only the certificate (``ca``), or nothing
(``none``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How a connection is encrypted; the fields are the settings ``ssl_…``."""

    verify: str
    ca: Path | None  # None only if nothing is verified
    cert: Path | None
    key: Path | None

    @property
    def checklist(self) -> str:
        """What the operator can check if psched cannot connect, as questions for an error text."""
        questions = ["Does the server offer TLS"]
        match self.verify:
            case "full":
                questions.append(
                    "is its certificate in date, by the authority in ssl_ca, and for this host's"
                    " name (ssl_verify: ca accepts any name)"
                )
            case "ca":
                questions.append("is its certificate in date and by the authority in ssl_ca")
        if self.cert is None:
            questions.append("does it want a client's certificate (set ssl_cert and ssl_key)")
        else:
            questions.append("does it accept the one in ssl_cert")
        return ", ".join(questions) + "?"


def tls_of(values: Mapping[str, Any]) -> Tls | None:
    """Convert valid settings to a `Tls` object.

    Return None if no setting requires TLS. Then the options in the url decide whether a connection
    is encrypted, or else the default of the database driver.
    """
    given = {name: values[f"ssl_{name}"] for name in ("ca", "cert", "key")}
    verify = values["ssl_verify"] or ("full" if given["ca"] else None)
    return None if verify is None else Tls(verify=verify, **given)
