# SPDX-License-Identifier: Apache-2.0
"""Opening and writing the files of a checkpoint: no links, nothing but regular files, and errors that name the path."""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from megatron_core.errors import CheckpointError

_WRITEBACK_BYTES = 32 * 2**20


@contextmanager
def naming(action: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a CheckpointError that says what could not be done to which path, and why."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot {action} {path}: {error.strerror or error}") from error


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The descriptor of a regular file, for reading. Raises CheckpointError for a link and anything else."""
    descriptor = open_regular(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> int:
    """As `opened`; the caller closes."""
    with naming("read", path):
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise CheckpointError(f"{path} is a symbolic link, and those are not followed inside a checkpoint")
        # O_NONBLOCK: opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
    os.close(descriptor)
    raise CheckpointError(f"{path} is not a regular file")


def read_exactly(descriptor: int, path: Path, offset: int, buffer: memoryview) -> None:
    """Fill the whole buffer from byte `offset` on. Raises CheckpointError where the file ends before."""
    done = 0
    with naming("read", path):
        while done < len(buffer):
            count = os.preadv(descriptor, [buffer[done:]], offset + done)
            if not count:
                raise CheckpointError(f"{path} ends at byte {offset + done}, {len(buffer) - done} bytes too early")
            done += count


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a new file and bring it to the disk. Raises CheckpointError where that fails or the file exists."""
    with naming("write", path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            started = written = 0
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest:
                    done = os.write(descriptor, rest)
                    rest, written = rest[done:], written + done
                if written - started >= _WRITEBACK_BYTES:
                    # Starts bringing them to the disk while the rest is prepared, and gives the page cache back.
                    os.posix_fadvise(descriptor, started, written - started, os.POSIX_FADV_DONTNEED)
                    started = written
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Bring new and removed names of a directory to the disk."""
    with naming("synchronise", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
