"""Places in the log as people write them: an offset, a GTID, or a position that is stored."""

import json
import re
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sources.mysql.gtid import GtidPos, GtidSet
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition

_FILE_AND_OFFSET = re.compile(r"([^:\s]+\.\d+):(\d+)")
_MYSQL_GTID = re.compile(r"([0-9a-fA-F-]{36}):(\d+)")
_MARIADB_GTID = re.compile(r"(\d+-\d+)-(\d+)")
_TIME = "a time (2026-11-23T10:00:00Z or '2h ago'), "


@dataclass(frozen=True)
class FileOffset:
    """An offset in a file of the log."""

    file: str
    offset: int


@dataclass(frozen=True)
class Transaction:
    """A transaction that has a GTID.

    Attributes:
        origin: the part in front of its number: MySQL's server, or MariaDB's ``domain-server``.
        number: its own.
    """

    origin: str
    number: int


def named_place(
    text: str, gtids: GtidSet | GtidPos | None, option: str
) -> FileOffset | Transaction | dict[str, Any]:
    """Return the place that a person writes; a stored position as it was stored.

    Args:
        text: ``FILE:OFFSET``, a GTID, or a position as `deltaforge status` shows it.
        gtids: of the server, which says of which kind a GTID may be.
        option: the name of the option or field that holds it, for the error.

    Raises:
        SpecError: it is none of these.
    """
    if text.startswith("{"):
        try:
            position = dict(json.loads(text))
            LogPosition.from_json(position)
        except (ValueError, TypeError, AttributeError) as error:
            raise SpecError(f"{option}: {text!r} is no position of a MySQL log") from error
        return position
    if found := _FILE_AND_OFFSET.fullmatch(text):
        return FileOffset(found[1], int(found[2]))
    pattern = _MYSQL_GTID if isinstance(gtids, GtidSet) else _MARIADB_GTID
    if gtids is not None and (found := pattern.fullmatch(text)):
        return Transaction(found[1].lower(), int(found[2]))
    raise SpecError(
        f"{option}: {text!r} is no place of this server's log; write "
        f"{_TIME if option == 'to' else ''}FILE:OFFSET (binlog.000002:1234), a GTID of one "
        "transaction, or a position that `deltaforge status NAME --json` shows"
    )
