# SPDX-License-Identifier: Apache-2.0
"""Flips single bits in the files of a checkpoint and loads it on two ranks, as a run does.

Whatever is read must be what was saved. A flip in bytes that a load has no use for (moments where weights alone are
loaded, 16-bit weights where their masters are) is harmless to it, and found by whoever reads all.
"""

import contextlib
import hashlib
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from megatron_core.checkpoint.directory import read_manifest, step_directory
from megatron_core.checkpoint.held import held_tensors
from megatron_core.checkpoint.manifest import FILE_NAME
from megatron_core.checkpoint.verify import verify
from megatron_core.config.cli import parse
from megatron_core.errors import CheckpointError
from megatron_core.parallel.groups import create_context
from megatron_core.training.console import LOGGER_NAME
from megatron_core.training.mesh import grid_of, kv_replicas
from megatron_core.training.run_data import open_data
from megatron_core.training.session import begin


@dataclass(frozen=True, kw_only=True)
class Flip:
    """One bit of one file."""

    step: int
    place: str
    """What the file holds there: manifest, header, or the section of a tensor (model, master, adam_m, adam_v)."""
    path: Path
    byte: int
    bit: int

    @contextlib.contextmanager
    def done(self) -> Iterator[None]:
        """The bit is flipped while the context is open."""
        self._invert()
        yield
        self._invert()

    def _invert(self) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.byte)
            value = file.read(1)[0]
            file.seek(self.byte)
            file.write(bytes([value ^ 1 << self.bit]))


@dataclass(frozen=True)
class Loaded:
    """What a rank has after loading."""

    step: int | None
    """None: it could not load anything."""
    digest: str
    """Of all its weights, masters and moments, of its weights alone where no more was loaded; or the error."""
    said: tuple[str, ...]
    """Warnings."""


def draw(root: Path, step: int, random_: random.Random) -> Flip:
    """A bit of a checkpoint: any place alike, then any byte there. The checkpoint is whole."""
    directory, manifest = step_directory(root, step), read_manifest(root, step)
    stretches = {"manifest": [(directory / FILE_NAME, 0, (directory / FILE_NAME).stat().st_size)]}
    stretches["header"] = [(directory / file.name, 0, file.header_bytes) for file in manifest.files]
    for entry in manifest.tensors:
        found = stretches.setdefault(entry.name.partition("/")[0], [])
        found += [(directory / piece.file, piece.offset, piece.nbytes) for piece in entry.pieces]
    place = random_.choice(sorted(stretches))
    path, first, length = random_.choices(stretches[place], [stretch[2] for stretch in stretches[place]])[0]
    return Flip(step=step, place=place, path=path, byte=first + random_.randrange(length), bit=random_.randrange(8))


def is_found(root: Path, step: int) -> bool:
    """Whether who reads all of a checkpoint, as `tools/inspect.py` does, finds that it is damaged."""
    try:
        return bool(verify(step_directory(root, step), read_manifest(root, step), lambda _: None))
    except CheckpointError:
        return True


def load_rank(rank: int, world_size: int, flags: str) -> Loaded:
    """Load as a run does that starts with these flags, on one rank of an initialised world."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(LOGGER_NAME).addHandler(handler)
    torch.set_num_threads(1)
    config = parse(flags.split(), world_size).config
    ctx = create_context(grid_of(config, world_size), rank, torch.device("cpu"), kv_replicas=kv_replicas(config))
    try:
        begun = begin(config, ctx, open_data(config))
    except CheckpointError as error:
        return Loaded(None, str(error), tuple(said))
    finally:
        logging.getLogger(LOGGER_NAME).removeHandler(handler)
    begun.run.source.close()
    digest = hashlib.sha256()
    with_optim = config.checkpoint.load_optim
    for tensor in held_tensors(begun.run.reducer.buckets, begun.run.optimizer, with_optim=with_optim):
        digest.update(tensor.name.encode() + tensor.values.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return Loaded(begun.state.step, digest.hexdigest(), tuple(said))
