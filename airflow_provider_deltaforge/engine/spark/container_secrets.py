"""Variables that travel to a driver on YARN among the secrets of its containers.

YARN gives each container a file of tokens and secret keys, which only its user can read and which
goes when the application ends; ``HADOOP_TOKEN_FILE_LOCATION`` names it. ``spark-submit`` passes on
what the file of that name held where it ran. So the variables are one secret key in Hadoop's own
format: in no command line, setting or page of Spark and YARN, unlike ``spark.yarn.appMasterEnv``.
"""

import io
import json
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from airflow_provider_deltaforge.errors import FatalError

TOKEN_FILE = "HADOOP_TOKEN_FILE_LOCATION"  # noqa: S105 - a name
"""The variable by which Hadoop finds a process's tokens and secret keys."""

_HEAD = b"HDTS\0"
"""Of a file in the format that all releases of Hadoop read and containers are given."""
_ALIAS = b"deltaforge.variables"


def token_file(variables: Mapping[str, str]) -> bytes:
    """Return a file of tokens that holds no token, and the variables as a secret key."""
    secret = json.dumps(dict(variables)).encode()
    return b"".join((_HEAD, _number(0), _number(1), _sized(_ALIAS), _sized(secret)))


def take_variables(environment: MutableMapping[str, str] = os.environ) -> None:
    """Put the variables that came with this container into the environment.

    Nothing happens where there are none: not on YARN, or not launched by us.

    Args:
        environment: of this process.

    Raises:
        FatalError: the container's file cannot be read.
    """
    named = environment.get(TOKEN_FILE)
    if not named:
        return
    try:
        secret = _secret_keys(Path(named).read_bytes()).get(_ALIAS)
    except (OSError, ValueError) as error:
        raise FatalError(f"{TOKEN_FILE} of this container cannot be read: {error}") from error
    if secret is None:
        return
    environment.update(json.loads(secret))


def _secret_keys(content: bytes) -> dict[bytes, bytes]:
    """Return the secret keys of a file of tokens.

    Raises:
        ValueError: it is none, or of another format.
    """
    file = io.BytesIO(content)
    if file.read(len(_HEAD)) != _HEAD:
        raise ValueError("it is no file of tokens in Hadoop's first format")
    for _ in range(_read_number(file)):
        for _part in ("alias", "identifier", "password", "kind", "service"):
            _read_sized(file)
    return {_read_sized(file): _read_sized(file) for _ in range(_read_number(file))}


def _sized(content: bytes) -> bytes:
    return _number(len(content)) + content


def _number(value: int) -> bytes:
    """Return a number as Hadoop writes one that is not negative."""
    if value < 128:
        return bytes((value,))
    content = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes((256 - 112 - len(content),)) + content


def _read_sized(file: io.BytesIO) -> bytes:
    size = _read_number(file)
    content = file.read(size)
    if len(content) != size:
        raise ValueError("it ends early")
    return content


def _read_number(file: io.BytesIO) -> int:
    first = file.read(1)
    if not first:
        raise ValueError("it ends early")
    if first[0] < 128:
        return first[0]
    length = 256 - 112 - first[0]
    if not 1 <= length <= 8:
        raise ValueError("it holds a negative number")
    return int.from_bytes(file.read(length), "big")
