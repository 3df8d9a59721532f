"""Encrypted connections: what the settings for TLS mean."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SETTINGS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify")
"""The names of the settings for TLS."""

VERIFY = ("full", "ca", "none")
"""What is checked of a server: its certificate and its name, only the certificate, nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """A connection that must be encrypted.

    Attributes:
        verify: one of `VERIFY`.
        ca: the certificates of the trusted authorities; None only if nothing is checked.
        cert: our own certificate, for a server that requires one.
        key: its private key; None only if `cert` is.
    """

    verify: str
    ca: Path | None
    cert: Path | None
    key: Path | None

    @property
    def checklist(self) -> str:
        """What to check if a connection cannot be made, for people."""
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
    """How valid settings have connections encrypted; None: they leave it to the url or driver."""
    given = {name: values[f"ssl_{name}"] for name in ("ca", "cert", "key")}
    verify = values["ssl_verify"] or ("full" if given["ca"] else None)
    return None if verify is None else Tls(verify=verify, **given)
