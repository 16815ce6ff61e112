"""The folder of downloaded and converted models: one process writes an entry, and only whole entries appear.

Work is done in a scratch folder on the cache's file system and renamed into place, so that a killed
process leaves nothing that a later start would trust.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError
from tqdm import tqdm

CACHE_VARIABLE = "SERVEGRAPH_CACHE"
CHUNK_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class ModelSourceError(ValueError):
    """A model source that cannot be turned into a folder; the message says what to do next."""


class FileRecord(BaseModel):
    """What is known of a large file, kept beside it so that later starts need not read it all again."""

    size: int
    mtime_ns: int
    sha256: str

    def describes(self, file: Path) -> bool:
        """Whether size and modification time of `file` are still those of the record."""
        status = file.stat()
        return (status.st_size, status.st_mtime_ns) == (self.size, self.mtime_ns)


def cache_folder(configured: Path | None) -> Path:
    """The configured folder, else the environment's, else the user's default."""
    if configured is not None:
        return configured
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/servegraph").expanduser()


@contextmanager
def exclusive_scratch(cache: Path, key: str) -> Iterator[Path]:
    """Hold the lock of `key` against other processes and give an empty folder to prepare its entry in."""
    scratch, locks = cache / "tmp", cache / "locks"
    scratch.mkdir(parents=True, exist_ok=True)
    locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(locks / f"{key}.lock")
    try:
        lock.acquire(timeout=1)
    except Timeout:
        logger.info("waiting for another process that prepares %s", key)
        lock.acquire()
    try:
        for left_by_a_killed_process in scratch.glob(f"{key}.*"):
            shutil.rmtree(left_by_a_killed_process, ignore_errors=True)
        with TemporaryDirectory(dir=scratch, prefix=f"{key}.", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    finally:
        lock.release()


def publish(prepared: Path, target: Path) -> None:
    """Move a finished folder into place; the caller holds the lock, and `target` is absent or invalid."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(prepared, target)


def hash_file(file: Path) -> str:
    """SHA-256 of a file, with a bar for a person who waits."""
    digest = hashlib.sha256()
    with (
        file.open("rb") as stream,
        tqdm.wrapattr(
            stream, "read", total=file.stat().st_size, desc=f"checking {file.name}", disable=None
        ) as counted,
    ):
        while chunk := counted.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_record(file: Path, record: Path, sha256: str) -> None:
    """Remember the digest of `file` in `record`."""
    status = file.stat()
    content = FileRecord(size=status.st_size, mtime_ns=status.st_mtime_ns, sha256=sha256)
    record.parent.mkdir(parents=True, exist_ok=True)
    partial = record.with_name(f"{record.name}.{os.getpid()}")
    partial.write_text(content.model_dump_json())
    os.replace(partial, record)


def read_record(record: Path) -> FileRecord | None:
    """The record, or None where there is none that can be read."""
    try:
        return FileRecord.model_validate_json(record.read_bytes())
    except (OSError, ValidationError):
        return None


def file_sha256(file: Path, record: Path) -> str:
    """SHA-256 of `file`, from `record` while size and modification time are unchanged."""
    known = read_record(record)
    if known is not None and known.describes(file):
        return known.sha256
    sha256 = hash_file(file)
    with suppress(OSError):  # a cache that is mounted read-only still serves
        write_record(file, record, sha256)
    return sha256


def is_intact(file: Path, record: Path) -> bool:
    """Whether `file` still has the content for which `record` was written."""
    known = read_record(record)
    if known is None or not file.is_file():
        return False
    # A cache copied into an image has new modification times, so those alone prove nothing.
    return known.describes(file) or hash_file(file) == known.sha256
