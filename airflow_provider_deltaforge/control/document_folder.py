"""The pipeline documents of folders, as they come, change and go."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.load import documents_at, load, read_document

_Mark = tuple[int, int, int]
"""When a file was changed, its size and its inode."""

_GONE_LOOKS = 2
"""A file that an editor puts in another's place may be missing for a moment."""


@dataclass(frozen=True, slots=True)
class Document:
    """A pipeline document that a file holds.

    Attributes:
        file: where.
        name: of its pipeline.
        text: variables unexpanded.
        mark: changes with every time that the file is written.
    """

    file: Path
    name: str
    text: str
    mark: _Mark


class DocumentFolder:
    """Reads folders and single files again and again. Used by one thread.

    A file counts once two looks have found it the same: it may be written at this moment. One that
    is wrong counts as it was when it was right.

    Args:
        paths: the folders and files. What lies in a folder under a name that begins with a dot is
            left out.
        refused: hears of a file and why it is not used, once for each time it is written.
    """

    def __init__(self, paths: Sequence[Path], refused: Callable[[Path, str], None]) -> None:
        self._paths = paths
        self._refused = refused
        self._seen: dict[Path, _Mark] = {}
        self._missing: dict[Path, int] = {}
        self._documents: dict[Path, Document] = {}
        self._wrong: dict[Path, tuple[_Mark, str]] = {}
        self._doubled: dict[Path, str] = {}
        self._is_first = True

    def look(self) -> Mapping[str, Document]:
        """Return the documents by the names of their pipelines.

        Raises:
            SpecError: one of them is not there, or cannot be read; then nothing has gone.
        """
        marks = self._marks()
        for file, mark in marks.items():
            self._missing.pop(file, None)
            is_whole = self._is_first or self._seen.get(file) == mark
            known = self._documents.get(file)
            if is_whole and (known is None or known.mark != mark):
                self._read(file, mark)
        for file in [file for file in self._documents if file not in marks]:
            self._missing[file] = self._missing.get(file, 0) + 1
            if self._missing[file] >= _GONE_LOOKS:
                del self._documents[file], self._missing[file]
        self._seen, self._is_first = marks, False
        return self._by_name()

    @property
    def refused(self) -> Mapping[str, str]:
        """Return why files that are there are not used, as the last look found them."""
        wrong = {
            str(file): self._wrong[file][1]
            for file, mark in self._seen.items()
            if self._wrong.get(file, (None, ""))[0] == mark
        }
        doubled = {str(file): why for file, why in self._doubled.items() if file in self._seen}
        return wrong | doubled

    def _marks(self) -> dict[Path, _Mark]:
        marks: dict[Path, _Mark] = {}
        for path in self._paths:
            try:
                path.stat()
                for file in documents_at(path):
                    if any(part.startswith(".") for part in file.relative_to(path).parts):
                        continue
                    try:
                        found = file.stat()
                    except FileNotFoundError:
                        continue  # Taken away since it was listed.
                    marks[file] = (found.st_mtime_ns, found.st_size, found.st_ino)
            except OSError as error:
                raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
        return marks

    def _read(self, file: Path, mark: _Mark) -> None:
        if self._wrong.get(file, (None, ""))[0] == mark:
            return
        try:
            text = read_document(file)
            self._documents[file] = Document(file, load(text, expand=False).name, text, mark)
            self._wrong.pop(file, None)
        except SpecError as error:
            self._refuse(file, mark, str(error))

    def _refuse(self, file: Path, mark: _Mark, reason: str) -> None:
        if self._wrong.get(file) != (mark, reason):
            self._wrong[file] = (mark, reason)
            self._refused(file, reason)

    def _by_name(self) -> dict[str, Document]:
        found: dict[str, Document] = {}
        former_doubled, self._doubled = self._doubled, {}
        for file, document in sorted(self._documents.items()):
            former = found.setdefault(document.name, document)
            if former is not document:
                reason = f"the pipeline {document.name!r} is already in {former.file}"
                self._doubled[file] = reason
                if former_doubled.get(file) != reason:
                    self._refused(file, reason)
        return found
