# SPDX-License-Identifier: Apache-2.0
"""Memory of the host for the states of the optimizer, and for gradients: huge pages, or a file on a fast disk.

The states are passed over once a step from end to end, which costs a few per cent less in pages of 2 MiB than of 4 KiB
(measured). They never travel to the device, so none of it is pinned. In a file they take no memory but what the system
has to spare, at the speed of the disk (the NVMe part of ZeRO-Infinity, Rajbhandari et al., arXiv:2104.07857). Whoever
uses the tensors sees no difference.
"""

import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from megatron_core.errors import ConfigError
from megatron_core.parallel.fake_memory import only_fakes_are_made
from megatron_core.parallel.host_storage import as_host

_ALIGNMENT = 64
_HUGE_PAGE = 2**21


def host_zeros(lengths: Sequence[int], dtype: torch.dtype, directory: Path | None = None) -> list[torch.Tensor]:
    """A flat tensor of zeros for each length, all in one stretch of memory, or of a file in `directory` if it is given.

    The file has no name and vanishes with the process, however that ends. Raises ConfigError where the directory does
    not exist or cannot be written to, and where memory or disk have no room.
    """
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + -(-length * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT)
    nbytes = max(starts[-1], _ALIGNMENT)
    flat = _fake(nbytes) if only_fakes_are_made() else _real(nbytes, directory)
    return [flat[start : start + length * dtype.itemsize].view(dtype) for start, length in zip(starts, lengths)]


def _real(nbytes: int, directory: Path | None) -> torch.Tensor:
    mapped = _anonymous(nbytes) if directory is None else _in_file(nbytes, directory)
    flat = torch.frombuffer(mapped, dtype=torch.uint8)
    as_host(flat.untyped_storage())
    return flat


def _fake(nbytes: int) -> torch.Tensor:
    """Of a dry run, which may ask for more than this machine has."""
    storage = as_host(torch.UntypedStorage(nbytes, device="meta"))
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _anonymous(nbytes: int) -> mmap.mmap:
    """Memory of no file, in huge pages where the system has them."""
    try:
        mapped = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise ConfigError(
            f"host memory has no {_gigabytes(nbytes)} for what is offloaded ({error.strerror}); "
            "spread it over more data-parallel ranks (--use-distributed-optimizer) or put states on a disk"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def _in_file(nbytes: int, directory: Path) -> mmap.mmap:
    """A file's memory; its blocks are taken from the disk now, for a disk that fills up later would end the process."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            free = shutil.disk_usage(directory).free
            if free < nbytes:
                raise ConfigError(_full(nbytes, free, directory))
            try:
                os.posix_fallocate(file.fileno(), 0, nbytes)
            except OSError as error:  # others have been faster, or there is a quota
                raise ConfigError(_full(nbytes, free, directory, f"{error.strerror}")) from error
            return mmap.mmap(file.fileno(), nbytes)
    except OSError as error:
        raise ConfigError(f"the states of the optimizer cannot be put in {directory}: {error.strerror}") from error


def _full(nbytes: int, free: int, directory: Path, reason: str = "") -> str:
    reason = f" ({reason})" if reason else ""
    return (
        f"{directory} has {_gigabytes(free)} free, and this rank's states of the optimizer need {_gigabytes(nbytes)}"
        f"{reason}; make room there or name a directory on another disk"
    )


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
