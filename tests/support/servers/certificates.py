"""Certificates of a private authority, for servers on loopback and for their clients."""

import copy
from datetime import datetime
from pathlib import Path
from typing import Self

import trustme


class Certificates:
    """An authority, and certificates that it has signed, as files in PEM.

    Args:
        folder: an empty folder for the files.

    Attributes:
        authority: the certificate of the authority that clients trust.
        stranger: another authority, which has signed nothing here.
        certificate: a server's certificate, for 127.0.0.1 and localhost.
        key: its private key.
        client_certificate: a client's certificate.
        client_key: its private key.
        stranger_certificate: a client's certificate that the other authority has signed.
        stranger_key: its private key.
    """

    def __init__(self, folder: Path) -> None:
        authority, stranger = trustme.CA(), trustme.CA()
        self._folder = folder
        self._issuer = authority
        self.authority = folder / "authority.pem"
        authority.cert_pem.write_to_path(self.authority)
        self.stranger = folder / "stranger.pem"
        stranger.cert_pem.write_to_path(self.stranger)
        self.certificate, self.key = _write(
            folder, "server", authority.issue_cert("127.0.0.1", "localhost")
        )
        self.client_certificate, self.client_key = _write(
            folder, "client", authority.issue_cert(common_name="client")
        )
        self.stranger_certificate, self.stranger_key = _write(
            folder, "stranger-client", stranger.issue_cert(common_name="client")
        )

    def with_server(self, name: str, *hosts: str, not_after: datetime | None = None) -> Self:
        """A copy with another certificate for the server.

        Args:
            name: the name of the new files.
            hosts: the names that it is for.
            not_after: its end.
        """
        changed = copy.copy(self)
        issued = self._issuer.issue_cert(*hosts, not_after=not_after)
        changed.certificate, changed.key = _write(self._folder, name, issued)
        return changed


def _write(folder: Path, name: str, issued: trustme.LeafCert) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.unlink(missing_ok=True)
    for blob in issued.cert_chain_pems:
        blob.write_to_path(certificate, append=True)
    issued.private_key_pem.write_to_path(key)
    key.chmod(0o600)  # libpq and PostgreSQL require this mode
    return certificate, key
