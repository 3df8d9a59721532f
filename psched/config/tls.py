"""Encrypted connections: what the settings for TLS mean."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SETTINGS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify")
"""The names of the settings for TLS."""

VERIFY = ("full", "ca", "none")
"""What is checked about a server. ``full``: its certificate and its name; ``ca``: only its
certificate; ``none``: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How a connection is encrypted.

    Attributes:
        verify: one of `VERIFY`.
        ca: the file with the certificates of the trusted authorities; None only if `verify` is
            ``none``.
        cert: the file with psched's own certificate, for servers that require client certificates;
            None: psched has no certificate.
        key: the file with the private key of `cert`; None exactly if `cert` is None.
    """

    verify: str
    ca: Path | None
    cert: Path | None
    key: Path | None

    @property
    def checklist(self) -> str:
        """Questions that help the operator if psched cannot connect; part of an error text."""
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
    """Return how connections are encrypted according to valid settings.

    None: no setting requires encryption, so the url's options or the driver decide.
    """
    given = {name: values[f"ssl_{name}"] for name in ("ca", "cert", "key")}
    verify = values["ssl_verify"] or ("full" if given["ca"] else None)
    return None if verify is None else Tls(verify=verify, **given)
