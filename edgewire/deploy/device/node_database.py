"""A node's database: small records, and blobs that belong to them.

node.db               an SQLite database with all records, and all blobs of fewer than `LARGE` bytes
arrays/RECORD-HASH    a larger blob; the xxh3 of its content names the file

A blob is a byte string, such as an array of a run's state. Blobs are stored by their hash, so an
unchanged blob is not written again. A record and its blobs change in one transaction: after a kill
at any moment the folder holds the record and the blobs of the last complete `write`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path
from typing import TextIO

from xxhash import xxh3_128_hexdigest

from edgewire.machine.errors import UsageError

LARGE = 256 << 10  # bytes: a blob of this size or more is a file
_AT_ONCE = 8  # files that are written or removed in parallel, which takes a third of the time
FORMAT = 3  # of the folder
# EXCLUSIVE: SQLite needs no memory that processes share. FULL: a change is durable when the call
# returns. secure_delete: if it is on, SQLite overwrites each removed blob.
_OPTIONS = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA synchronous = FULL;
PRAGMA secure_delete = OFF;
"""
_SCHEMA = f"""
PRAGMA journal_mode = WAL;
CREATE TABLE records (name TEXT PRIMARY KEY, content BLOB, hash TEXT, used REAL) WITHOUT ROWID;
CREATE TABLE blobs (
    record TEXT, hash TEXT, content BLOB, PRIMARY KEY (record, hash)
) WITHOUT ROWID;
PRAGMA user_version = {FORMAT};
"""
# The machine is the reason of an `OperationalError`, unless SQLite misses a table, or the file was
# removed. All other errors are due to a damaged file.
_OF_FILE = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY)
_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the latter if SQLite's message holds damaged text
hash_of = xxh3_128_hexdigest
log = getLogger("edgewire")


class NodeDatabase:
    """The database in a node's folder. Only one process at a time may use it.

    A damaged database is replaced by an empty one, and the log says so. Raises `OSError`, and
    `UsageError` if another version of this project wrote the folder. `connection`: SQLite's.
    """

    def __init__(self, folder: Path) -> None:
        self._file, self._arrays = folder / "node.db", folder / "arrays"
        if not self._file.exists():
            self._create()
        try:
            self._open()
        except _ERRORS as error:
            self._recover(error)

    def close(self) -> None:
        """Close the database."""
        self.connection.close()

    def read(self, name: str) -> bytes | None:
        """Return a record's content; None if there is no such record.

        Raises `OSError`, and `ValueError` for a damaged record.
        """
        with self._errors():
            query = "SELECT content, hash FROM records WHERE name = ?"
            found = self.connection.execute(query, [name]).fetchone()
        return None if found is None else _checked(*found)

    def blob(self, name: str, digest: str) -> bytes:
        """Return the blob of a record that has the hash `digest`.

        Raises `OSError`, and `ValueError` for a damaged or missing blob.
        """
        place = "record = ? AND hash = ?"
        with self._errors():
            query = f"SELECT content FROM blobs WHERE {place}"
            found = self.connection.execute(query, [name, digest]).fetchone()
        if found is None:
            raise ValueError(f"blob {digest} is missing")
        try:
            content = self._path(name, digest).read_bytes() if found[0] is None else found[0]
            return _checked(content, digest)
        except (OSError, ValueError):
            with self._errors(), self.connection as db:  # or `write` would not write the blob again
                db.execute(f"DELETE FROM blobs WHERE {place}", [name, digest])
            raise

    def write(
        self,
        name: str,
        content: bytes,
        blobs: Mapping[str, memoryview] | None = None,
        keep: Collection[str] = (),
    ) -> None:
        """Write a record and its blobs. All of it is durable when this method returns.

        `blobs`: hash (`hash_of`) -> content. The record's other blobs are removed, except those
        with a hash in `keep`. Raises `OSError`; the stored content does not change then.
        """
        blobs = blobs or {}
        with self._errors():
            rows = self.connection.execute("SELECT hash FROM blobs WHERE record = ?", [name])
            stored = {digest for (digest,) in rows}
            unneeded = stored - blobs.keys() - set(keep)
            new = {digest: blob for digest, blob in blobs.items() if digest not in stored}
            large = [digest for digest, blob in new.items() if blob.nbytes >= LARGE]
            try:
                self._write_files({self._path(name, digest): new[digest] for digest in large})
                removed = [(name, digest) for digest in unneeded]
                added = [
                    (name, digest, None if digest in large else blob)  # None: it is in a file
                    for digest, blob in new.items()
                ]
                record = (name, content, hash_of(content))
                with self.connection as db:  # a transaction
                    # Remove first, so that SQLite uses the same pages again.
                    db.executemany("DELETE FROM blobs WHERE record = ? AND hash = ?", removed)
                    db.executemany("INSERT INTO blobs VALUES (?, ?, ?)", added)
                    last = "SELECT COALESCE(MAX(used), 0) + 1 FROM records"  # never a clock's time
                    db.execute(f"INSERT OR REPLACE INTO records VALUES (?, ?, ?, ({last}))", record)
            finally:  # after a failure, too: a full disk gets its space back
                self._remove_files(name)

    def names(self) -> list[str]:
        """Return the names of all records; the order is that of the last writes, newest first."""
        query = "SELECT name FROM records ORDER BY used DESC"
        with self._errors():
            return [name for (name,) in self.connection.execute(query)]

    def remove(self, name: str) -> None:
        """Remove a record and its blobs."""
        with self._errors():
            with self.connection as db:
                db.execute("DELETE FROM records WHERE name = ?", [name])
                db.execute("DELETE FROM blobs WHERE record = ?", [name])
            self._remove_files(name)

    def _path(self, name: str, digest: str) -> Path:
        return self._arrays / f"{name}-{digest}"

    def _write_files(self, files: Mapping[Path, memoryview]) -> None:
        """Write blobs' files, which are durable on return.

        A file needs no draft: it is not in use before the database has its row.
        """
        if files:
            for file in files:
                file.touch(0o600)
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                names = pool.submit(sync_folder, self._arrays)
                list(pool.map(write_durably, files.keys(), files.values()))
            names.result()

    def _remove_files(self, name: str) -> None:
        """Remove the files of a record that are no blobs of it (any more)."""
        rows = self.connection.execute("SELECT hash FROM blobs WHERE record = ?", [name])
        needed = {self._path(name, digest) for (digest,) in rows}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(Path.unlink, set(self._arrays.glob(f"{name}-*")) - needed))

    def _create(self) -> None:
        """Write an empty database, atomically."""
        draft = self._file.with_suffix(".draft")
        for file in (self._file, draft):
            # A journal that is left of another file would change the new one.
            file.with_name(f"{file.name}-wal").unlink(missing_ok=True)
            file.with_name(f"{file.name}-journal").unlink(missing_ok=True)
        draft.unlink(missing_ok=True)
        try:
            db = sqlite3.connect(draft)
            db.executescript(_OPTIONS + _SCHEMA)
            db.close()
        except sqlite3.Error as error:
            raise _os_error(error) from error
        draft.replace(self._file)

    def _open(self) -> None:
        self.connection = sqlite3.connect(self._file)
        # A text may be damaged.
        self.connection.text_factory = lambda text: text.decode(errors="replace")
        self.connection.executescript(_OPTIONS)
        (found,) = self.connection.execute("PRAGMA user_version").fetchone()
        # This also checks the order of keys, for example.
        (says,) = self.connection.execute("PRAGMA integrity_check(1)").fetchone()
        if says != "ok" or found == 0:
            raise sqlite3.DatabaseError("it is empty" if found == 0 else " ".join(says.split()))
        if found != FORMAT:
            self.connection.close()
            raise UsageError(
                f"--state {self._file.parent} cannot be used: it has format {found}, and this "
                f"version of EdgeWire needs format {FORMAT}: remove node.db* and arrays in it, or "
                "give another folder"
            )
        self._arrays.mkdir(exist_ok=True)
        sync_folder(self._file.parent)
        for name in {file.name.partition("-")[0] for file in self._arrays.iterdir()}:
            self._remove_files(name)  # a kill may have left some

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise SQLite's errors as `OSError`. If the database is damaged, begin anew before."""
        try:
            yield
        except _ERRORS as error:
            self._recover(error)
            raise _os_error(error) from error

    def _recover(self, error: Exception) -> None:
        """Replace the database by an empty one if the error is due to damage.

        Raises `OSError` otherwise, and an error that is not SQLite's but a caller's.
        """
        if isinstance(error, sqlite3.ProgrammingError):
            raise error
        if isinstance(error, sqlite3.OperationalError) and _code(error) not in _OF_FILE:
            raise _os_error(error) from error
        log.warning("the state in %s is damaged (%s): it starts anew", self._file.parent, error)
        self._create()  # if this fails, the next call with the old file tries again
        self.connection.close()
        self._open()


def write_file(file: Path, content: bytes) -> None:
    """Write a file atomically; only this user may read it. It is durable on return."""
    draft = file.with_name(f"{file.name}.draft")
    write_durably(draft, content)
    draft.replace(file)
    sync_folder(file.parent)


def write_durably(file: Path, content: bytes | memoryview) -> None:
    """Write a file that only this user may read; its content is durable on return (fsync)."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def locked(folder: Path, taken: str) -> TextIO:
    """Make the folder of an option --state, and lock it; return the open file that holds the lock.

    Raises `UsageError` if the folder cannot be used, and with the text `taken` if another process
    holds the lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = (folder / "lock").open("a")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        raise UsageError(taken) from None
    except OSError as error:
        raise UsageError(f"--state {folder} cannot be used: {error.strerror}") from error
    return handle


def sync_folder(folder: Path) -> None:
    """Make the names of a folder's files durable (fsync)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checked(content: object, digest: str) -> bytes:
    """Return the content of a record or a blob. Raises `ValueError` if its hash is another."""
    if not isinstance(content, bytes) or hash_of(content) != digest:
        raise ValueError(f"{digest} is not what was written")
    return content


def _code(error: Exception) -> int:
    """Return SQLite's primary error code; 0 if the error has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _os_error(error: Exception) -> OSError:
    if _code(error) == sqlite3.SQLITE_FULL:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return OSError(errno.EIO, str(error))
