"""Certificates that sign themselves, for servers and clients of a test."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certified:
    """A certificate and its key; who trusts ``certificate`` trusts nobody else."""

    certificate: Path
    key: Path
    both: Path


def certified(
    directory: Path, name: str = "127.0.0.1", key_password: str | None = None
) -> Certified:
    """Make a certificate for a name, which also answers on the loopback address."""
    stem = directory / name
    key, certificate, both = (stem.with_suffix(f".{part}.pem") for part in ("key", "crt", "both"))
    lock = ["-nodes"] if key_password is None else ["-passout", f"pass:{key_password}"]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", *lock, "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    both.write_text(key.read_text() + certificate.read_text())
    return Certified(certificate, key, both)
