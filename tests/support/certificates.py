"""Certificates for tests, signed by an authority of their own; made by the openssl command.

authority = Authority(tmp_path)
server = authority.signs("localhost", "IP:127.0.0.1")
server.cert, server.key, authority.cert     PEM files
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    cert: str
    key: str


class Authority:
    """Everything it signs is valid for a day."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self.cert = str(folder / f"{name}.pem")
        self._key = str(folder / f"{name}.key")
        _openssl(
            "req", "-x509", *_new_key(self._key), "-subj", f"/CN={name}", "-out", self.cert,
            # Without it Python trusts it no more from 3.13 on (ssl.VERIFY_X509_STRICT).
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def signs(self, name: str, *alternatives: str) -> Certificate:
        """`alternatives` as "DNS:host" or "IP:127.0.0.1"; the name alone is one by itself."""
        made = Certificate(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        names = ",".join([f"DNS:{name}", *alternatives])
        _openssl(
            "req", "-x509", *_new_key(made.key), "-subj", f"/CN={name}", "-days", "1",
            "-CA", self.cert, "-CAkey", self._key, "-out", made.cert,
            "-addext", f"subjectAltName={names}", "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
        return made


def encrypted(key: str) -> str:
    """The same key behind a password."""
    _openssl("ec", "-in", key, "-out", f"{key}.enc", "-aes128", "-passout", "pass:sesame")
    return f"{key}.enc"


def _new_key(path: str) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path]


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
