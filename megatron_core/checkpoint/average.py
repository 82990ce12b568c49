# SPDX-License-Identifier: Apache-2.0
"""The weighted mean of several checkpoints' weights as a new checkpoint (Izmailov et al. 2018, SWA).

Sums are float64. Where checkpoints hold wide masters, the mean is that of the masters, and 16-bit weights are its cast,
as in a training step. Memory is bounded by one output file, whatever the model's size.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from megatron_core.checkpoint.directory import (
    delete,
    finished_steps,
    prepare,
    publish,
    read_manifest,
    step_directory,
)
from megatron_core.checkpoint.manifest import Manifest, RankFile, TensorEntry, merge
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import cut, whole
from megatron_core.checkpoint.verify import ReportBytes, verify
from megatron_core.checkpoint.writer import Shard, rank_file_name, write_rank_file
from megatron_core.errors import CheckpointError

_PART_BYTES = 2**26
_FILE_BYTES = 2**30


@dataclass(frozen=True)
class Source:
    """One checkpoint that goes into the mean."""

    directory: Path
    manifest: Manifest
    share: float
    """Its part of the mean; all together make 1."""

    @property
    def wide(self) -> Mapping[str, TensorEntry]:
        """By parameter, the widest copy of its weights: the master where there is one."""
        entries = {entry.name: entry for entry in self.manifest.tensors}
        names = [name.removeprefix("model/") for name in entries if name.startswith("model/")]
        return {name: entries.get(f"master/{name}", entries[f"model/{name}"]) for name in sorted(names)}

    @property
    def nbytes(self) -> int:
        """Bytes that the mean reads."""
        return sum(entry.nbytes for entry in self.wide.values())


def open_sources(steps: Sequence[tuple[Path, int]], weights: Sequence[float] | None) -> list[Source]:
    """Checkpoints by (root, step), the newest last, with their shares: `weights` over their sum, or equal ones.

    Raises CheckpointError where one is not usable or given twice, weights make no mean, or parameters differ.
    """
    weights = [1.0] * len(steps) if weights is None else weights
    if len(weights) != len(steps):
        raise CheckpointError(f"{len(weights)} weights for {len(steps)} checkpoints: give one for each, in their order")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not sum(weights) > 0:
        raise CheckpointError(f"weights {' '.join(map(str, weights))} make no mean: give numbers >= 0, and one above 0")
    if len(set(steps)) < len(steps):
        raise CheckpointError("a checkpoint is given twice: give it once, with a larger weight")
    sources = [
        Source(step_directory(root, step), read_manifest(root, step), weight / sum(weights))
        for (root, step), weight in zip(steps, weights)
    ]
    sources.sort(key=lambda source: source.manifest.step)
    _require_same_parameters(sources)
    return sources


def work_bytes(sources: Sequence[Source]) -> int:
    """Bytes that `average` will report: those of the sources, and those of the result, which is read back."""
    newest = sources[-1]
    entries = {entry.name: entry for entry in newest.manifest.tensors}
    copies = [source.wide for source in sources]
    result = sum(
        entries[f"model/{name}"].nbytes + (wide.nbytes if _all_have_master(copies, name) else 0)
        for name, wide in copies[-1].items()
    )
    return sum(source.nbytes for source in sources) + result


def average(sources: Sequence[Source], output: Path, report: ReportBytes) -> Manifest:
    """Write the mean to <output>/step_*, of the newest source's step, state, config and 16-bit dtype; read it back.

    A parameter has a master in the result where it has one in all sources. `report` hears of bytes read from the
    sources and read back. Raises CheckpointError where a source is damaged or not finite, or <output> has that step;
    nothing is left then.
    """
    newest = sources[-1].manifest
    directory = step_directory(output, newest.step)
    if newest.step in finished_steps(output):
        raise CheckpointError(f"{directory} is there already: give another --output")
    attempt = prepare(output, newest.step)
    try:
        written = _write_files(sources, directory, attempt, report)
        manifest = merge(newest.step, written, state=newest.state, config=newest.config)
        if damages := verify(directory, manifest, report):
            raise CheckpointError(f"{directory} does not read back as it was written: {damages[0].problem}")
        publish(output, manifest)
    except BaseException:
        with contextlib.suppress(CheckpointError):  # the first error is the one to tell
            delete(output, newest.step)
        raise
    return manifest


def _require_same_parameters(sources: Sequence[Source]) -> None:
    newest = sources[-1]
    wanted = {name: entry.shape for name, entry in newest.wide.items()}
    if not wanted:
        raise CheckpointError(f"{newest.directory} holds no weights")
    lines = []
    for source in sources[:-1]:
        held = {name: entry.shape for name, entry in source.wide.items()}
        lines += [
            f"{name}: {held.get(name, 'missing')} in {source.directory}, {wanted.get(name, 'missing')} in "
            f"{newest.directory}"
            for name in sorted(held.keys() | wanted.keys())
            if held.get(name) != wanted.get(name)
        ]
    if lines:
        raise CheckpointError("the checkpoints hold different weights, which have no mean:\n  " + "\n  ".join(lines))


def _all_have_master(copies: Sequence[Mapping[str, TensorEntry]], name: str) -> bool:
    return all(wide[name].name.startswith("master/") for wide in copies)


def _write_files(sources: Sequence[Source], directory: Path, attempt: int, report: ReportBytes) -> list[RankFile]:
    written: list[RankFile] = []
    pending: list[Shard] = []

    def write() -> None:
        written.append(write_rank_file(directory, rank_file_name(len(written), attempt), pending))
        pending.clear()

    for shards in _means(sources, report):
        pending += shards
        if sum(shard.values.nbytes for shard in pending) >= _FILE_BYTES:
            write()
    if pending:
        write()
    return written


def _means(sources: Sequence[Source], report: ReportBytes) -> Iterator[list[Shard]]:
    """What is to be written of one part of one parameter after the other."""
    copies = [source.wide for source in sources]
    narrow = {entry.name: entry for entry in sources[-1].manifest.tensors}
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(CheckpointReader(source.directory, source.manifest)) for source in sources]
        for name, newest in copies[-1].items():
            model = narrow[f"model/{name}"]
            for rectangle in cut(whole(newest.shape), _PART_BYTES // 8):
                total = torch.zeros(rectangle.shape, dtype=torch.float64)
                for source, wide, reader in zip(sources, copies, readers):
                    part = reader.load_rectangle(wide[name].name, rectangle, torch.float64)
                    if not part.isfinite().all():
                        raise CheckpointError(f"{source.directory}: {wide[name].name} has weights that are not finite")
                    total += source.share * part
                    report(rectangle.volume * wide[name].itemsize)
                mean = total.to(getattr(torch, newest.dtype))
                shards = [(model, mean.to(getattr(torch, model.dtype)))]
                if _all_have_master(copies, name):
                    shards.append((newest, mean))
                yield [
                    Shard(name=entry.name, shape=entry.shape, rectangle=rectangle, values=values)
                    for entry, values in shards
                ]
