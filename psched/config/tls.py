"""Encrypted connections: which settings may be combined, and what follows from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psched.config import urls
from psched.config.problems import InvalidValueError

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
    """How the values of valid settings encrypt connections; None: they do not say."""
    given = {name: values[f"ssl_{name}"] for name in ("ca", "cert", "key")}
    verify = values["ssl_verify"] or ("full" if given["ca"] else None)
    return None if verify is None else Tls(verify=verify, **given)


def check_cert(values: Mapping[str, Any]) -> None:
    """Check ``ssl_cert`` against the other settings; raises `InvalidValueError`."""
    if values["ssl_cert"] and not values["ssl_key"]:
        raise InvalidValueError(
            "needs ssl_key, the file with its private key; if that is in the same file, name it"
            " in both"
        )
    if values["ssl_cert"] and not values["ssl_ca"] and not values["ssl_verify"]:
        raise InvalidValueError(
            "does not say how the server is checked; set ssl_ca to the file with the certificate"
            " of its authority"
        )


def check_key(values: Mapping[str, Any]) -> None:
    """Check ``ssl_key`` against the other settings; raises `InvalidValueError`."""
    if values["ssl_key"] and not values["ssl_cert"]:
        raise InvalidValueError("needs ssl_cert, the file with the certificate that it belongs to")


def check_verify(values: Mapping[str, Any]) -> None:
    """Check ``ssl_verify`` against the other settings; raises `InvalidValueError`."""
    if values["ssl_verify"] in ("full", "ca") and not values["ssl_ca"]:
        raise InvalidValueError(
            "needs ssl_ca, the file with the certificate of the server's authority; for the public"
            " ones that is the system's file, such as /etc/ssl/certs/ca-certificates.crt"
        )
    if values["ssl_verify"] == "none" and values["ssl_ca"]:
        raise InvalidValueError(
            "must not be none beside ssl_ca, which would not be used; remove one"
        )


def check_url(values: Mapping[str, Any]) -> None:
    """Check the url's options against the settings for TLS; raises `InvalidValueError`."""
    options = urls.tls_options(values["url"])
    if tls_of(values) is not None:
        if reason := urls.why_without_tls(values["url"]):
            raise InvalidValueError(f"{reason}; remove the settings {_given(values)}")
        if options:
            raise InvalidValueError(
                f"has {', '.join(options)} among its options, beside the settings"
                f" {_given(values)}; use one or the other"
            )
    # With one of these PyMySQL ignores all others, the authority among them.
    verifying = {"ssl_verify_cert", "ssl_verify_identity"} & {*options}
    if verifying and {*options} - verifying:
        raise InvalidValueError(
            f"has {min(verifying)} among its options, which makes the driver ignore the others;"
            " use the settings ssl_ca and ssl_verify instead"
        )


def _given(values: Mapping[str, Any]) -> str:
    return ", ".join(name for name in SETTINGS if values[name])
