"""Opens the files in folders of runs, which may be damaged, or made by somebody else on purpose.

All of `report` opens such files here, so that no folder makes a program wait, or fills its memory:

* A file must be a regular file. Links in a run's folder are not followed, because a link of a
  foreign folder may lead to any file of this machine.
* JSON and YAML have at most `LARGEST` bytes, `MOST_NODES` lists and mappings (in YAML: values of
  any kind) and `DEEPEST` levels.
* YAML is plain data, without aliases and tags. `${...}` stays text.
* A history has at most `LARGEST_HISTORY` bytes, and a line of it `LONGEST_LINE`.

What does not fit is a `ValueError`. It is also noted, so that a command can name it (`noting`). A
command of `report` shows a user's mistakes as one line (`mistakes_are_lines`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, ParamSpec, TypeVar

from edgewire.machine.surroundings import print_any_text

LARGEST = 16_000_000  # bytes; `nodes.json` of 2,000 nodes with 1,000 classes has about 7 MB
LARGEST_HISTORY = 2_000_000_000  # bytes; 250,000 rounds have about 200 MB
# Small lists and texts take 30 times the memory that they have as JSON.
MOST_NODES = 100_000
DEEPEST = 24  # levels of lists, mappings and folders
LONGEST_LINE = 1_000_000  # bytes
LONG_NUMBER = re.compile(r"[-+\d_:.]{100,}")  # of 1:1:1... YAML computes a number to the base 60
PLAIN = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,62}[a-z0-9_-])?")
INNER = (".hydra", ".loggers")  # folders of a run's folder
MARK = 200  # bytes before the offset: they show whether a file is still the same
Notes = dict[Path, str]
Found = TypeVar("Found")
Given = ParamSpec("Given")
_notes: ContextVar[Notes | None] = ContextVar("notes", default=None)


@contextmanager
def noting() -> Iterator[Notes]:
    """In this context, note what is left out: the yielded dict has each path, and the reason."""
    notes: Notes = {}
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def left_out(notes: Notes) -> str:
    """Return one line on what was left out (`noting`); "" if there is nothing."""
    found = [f"{path} {why}" for path, why in notes.items()]
    line = f"left out: {'; '.join(found[:3])}" + f"; and {len(found) - 3} more" * (len(found) > 3)
    return "".join(c if c.isprintable() else "?" for c in line) if found else ""


def refuse(path: Path, why: str) -> NoReturn:
    """Note that a path is left out, and raise `ValueError`."""
    _note(path, why)
    raise ValueError(f"{path} {why}")


def _note(path: Path, why: str) -> None:
    if (notes := _notes.get()) is not None:
        notes[path] = why


def file_name(text: str) -> str:
    """Return a name for a file that is made of a text from elsewhere, such as a metric's name.

    A plain text (lower-case ASCII letters, digits, `_`, `.`, `-`) stays as it is. Any other text
    gets a digest, so that different texts give names that differ also where case does not count.
    """
    if PLAIN.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
    start = re.sub(r"[^a-z0-9_-]+", "_", text[:40].lower()).strip("_-")
    return f"{start or 'name'}-{digest}"


def open_file(file: Path) -> BinaryIO:
    """Open a file of a run's folder. Raises `OSError`, and `ValueError` if it is not regular."""
    if file.parent.name in INNER and file.parent.is_symlink():
        refuse(file.parent, "is a link")
    flags = (getattr(os, name, 0) for name in ("O_BINARY", "O_NONBLOCK", "O_NOFOLLOW"))
    try:
        # without O_NONBLOCK a FIFO would wait for its writer
        handle = os.open(file, os.O_RDONLY | sum(flags))
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            refuse(file, "is a link" if error.errno == errno.ELOOP else "is no regular file")
        if not isinstance(error, FileNotFoundError):
            _note(file, f"cannot be read: {error.strerror}")
        raise
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_HISTORY:
        os.close(handle)
        refuse(file, "is too large" if stat.S_ISREG(found.st_mode) else "is no regular file")
    return os.fdopen(handle, "rb")


def read_bytes(file: Path) -> bytes:
    """Return the content of a file. Raises `OSError`, and `ValueError` for a file to leave out."""
    with open_file(file) as opened:
        if (size := os.fstat(opened.fileno()).st_size) > LARGEST:
            refuse(file, f"has more than {LARGEST // 1_000_000} MB")
        return opened.read(size)


def read_json(file: Path) -> Any:
    """Return the value in a JSON file. Raises `OSError`, and `ValueError` for a damaged file."""
    text = read_bytes(file)
    try:
        return parse_json(text)
    except ValueError as error:
        refuse(file, f"cannot be read: {' '.join(str(error).split())[:80]}")


def parse_json(text: bytes) -> Any:
    """Return a value; null in place of NaN and infinity. Raises `ValueError`, also if too deep."""
    nodes = text.count(b"[") + text.count(b"{")
    if nodes > MOST_NODES or text.count(b'"') > 4 * MOST_NODES:
        raise ValueError("too many lists or texts")
    try:
        found = json.loads(text, parse_constant=lambda name: None)
    except RecursionError:
        raise ValueError("too many levels") from None
    if nodes > DEEPEST and _deeper(found, DEEPEST):
        raise ValueError("too many levels")
    return found


def row_in(line: bytes) -> dict[str, Any]:
    """Return the row in a line of a history; empty for a damaged line, or a part of one."""
    row = readable(parse_json, line)
    return row if isinstance(row, dict) else {}


def _deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inside = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(each, levels - 1) for each in inside)


def read_yaml(file: Path) -> Any:
    """Return the plain data in a YAML file: `${...}` stays text.

    Raises `OSError`, and `ValueError` for a damaged file and for what is no plain data.
    """
    import yaml  # type: ignore[import-untyped]  # imported here: a command without runs needs none

    text = read_bytes(file)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if it is built
    try:
        depth = 0
        for count, event in enumerate(yaml.parse(text, loader)):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None):
                raise ValueError("aliases and tags are no plain data")
            if depth > DEEPEST or count > MOST_NODES:
                raise ValueError("too many levels or values")
            if isinstance(event, yaml.ScalarEvent) and LONG_NUMBER.fullmatch(event.value):
                raise ValueError("a number of more than 100 digits")
        return yaml.load(text, loader)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        refuse(file, f"cannot be read: {' '.join(str(error).split())[:80]}")


def readable(
    read: Callable[Given, Found], *given: Given.args, **named: Given.kwargs
) -> Found | None:
    """Return what `read` returns for its arguments; None if a file is missing or damaged."""
    try:
        return read(*given, **named)
    except (OSError, ValueError, ResultsError):
        return None


def folders(top: Path) -> Iterator[tuple[Path, set[str]]]:
    """Yield `top` and each folder below it with the names in it. Links are not followed."""
    for folder, below, files in os.walk(top):
        yield Path(folder), {*below, *files}
        deepest = len(Path(folder).parts) - len(top.parts) == DEEPEST
        below[:] = [name for name in below if name not in INNER and not deepest]


def lines_of(opened: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file.

    Of a line that is too long only the first bytes are yielded, and they are no JSON.
    """
    while line := opened.readline(LONGEST_LINE):
        rest = line
        while len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
            rest = opened.readline(LONGEST_LINE)
        yield line


def rows_in(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a history; {} for a damaged line. Raises as `open_file`."""
    with open_file(file) as opened:
        yield from map(row_in, lines_of(opened))


class GrowingFile:
    """Reads new lines of a file to which a run appends, and which may be truncated or replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.begin_again()

    def begin_again(self) -> None:
        """Let the next call of `lines` begin with the file's first line."""
        self._offset, self._mark = 0, b""

    def lines(self) -> Iterator[bytes]:
        """Yield the complete lines since the last call; none without a file.

        Begins again first if the file does not have the same bytes before the last lines' end.
        Raises as `open_file`.
        """
        try:
            opened = open_file(self._path)
        except FileNotFoundError:
            self.begin_again()
            return
        with opened:
            opened.seek(self._offset - len(self._mark))
            if opened.read(len(self._mark)) != self._mark:
                self.begin_again()
                opened.seek(0)
            for line in lines_of(opened):
                if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                    break
                self._offset = opened.tell()
                # after a line whose rest was left out there is no mark
                self._mark = (self._mark + line)[-MARK:] if line.endswith(b"\n") else b""
                yield line


# Commands


class ResultsError(Exception):
    """The requested results are missing or wrong; the message is one line."""


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn the exceptions of damaged files into `ResultsError`."""
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OSError) as error:
        raise ResultsError(f"{folder}: its files cannot be used: {error!r}") from error


def mistakes_are_lines(main: Callable[Given, int]) -> Callable[Given, int]:
    """Make a command print one line and return 2 after a mistake, or a file error.

    Another line names the files of runs that the command has left out.
    """

    @wraps(main)
    def clear(*given: Given.args, **named: Given.kwargs) -> int:
        print_any_text()
        with noting() as notes:
            try:
                code, line = main(*given, **named), ""
            except ResultsError as error:
                code, line = 2, str(error)
            except BrokenPipeError:  # `| head` ends the command silently (`print_any_text`)
                raise
            except OSError as error:
                where = f"{error.filename}: " if error.filename else ""
                code, line = 2, f"{where}{error.strerror or error}"
        if line:
            print(f"error: {line}", file=sys.stderr)
        if notes:
            print(left_out(notes), file=sys.stderr)
        return code

    return clear
