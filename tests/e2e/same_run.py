# SPDX-License-Identifier: Apache-2.0
"""Whether a run that was disturbed has the numbers of one that was not: its losses on the way and its last state."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from megatron_core.checkpoint.compare import compare_tensor, field_differences, structural_differences
from megatron_core.checkpoint.directory import read_manifest, step_directory
from megatron_core.checkpoint.manifest import TensorEntry
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import whole
from megatron_core.errors import CheckpointError
from megatron_core.training.metrics import METRICS_FILE, read_metrics

_ATOL = 1e-12
_OF_THE_CLOCK, _OF_LOSSES = "elapsed_s", "recent_loss.mean"


def differences(save: Path, expected: Path, step: int, rtol: float = 0.0) -> Iterator[str]:
    """A line for each way in which the run that saved in `save` up to `step` is not that in `expected`.

    rtol: of losses, and of each tensor's largest element, as DESIGN's meaning of equal has it; 0: bit for bit.
    """
    yield from _in_losses(save, expected, rtol)
    try:
        for line in scalar_differences(save, expected, step):
            if not (rtol and line.startswith(_OF_LOSSES)):  # means of losses are as far apart as these
                yield line
        yield from tensor_differences(save, expected, step, rtol)
    except CheckpointError as error:
        yield str(error)


def scalar_differences(save: Path, expected: Path, step: int) -> Iterator[str]:
    """A line for each number of the run's state that is another one, the time that training took left aside."""
    ours, theirs = (read_manifest(root, step).state for root in (save, expected))
    yield from (line for line in field_differences(ours, theirs) if not line.startswith(_OF_THE_CLOCK))


def tensor_differences(save: Path, expected: Path, step: int, rtol: float = 0.0) -> Iterator[str]:
    """A line for each tensor of a checkpoint that is another one; `rtol` as in `differences`."""
    ours, theirs = (read_manifest(root, step) for root in (save, expected))
    structure = structural_differences(ours, theirs)
    yield from structure
    if structure:
        return
    with (
        CheckpointReader(step_directory(save, step), ours) as reader,
        CheckpointReader(step_directory(expected, step), theirs) as other,
    ):
        for mine, its in zip(ours.tensors, theirs.tensors, strict=True):
            found = compare_tensor(reader, other, mine, its)
            if found.unequal and (not rtol or found.max_abs > rtol * _largest(other, its) + _ATOL):
                yield f"{found.name}: {found.unequal} of {found.elements} elements differ, by up to {found.max_abs:g}"


def _in_losses(save: Path, expected: Path, rtol: float) -> Iterator[str]:
    """Steps may have several lines; those of validation may be missing, if the run died in it after saving."""
    wanted = {_key(line): _loss(line) for line in read_metrics(expected / METRICS_FILE)}
    found = [(_key(line), _loss(line)) for line in read_metrics(save / METRICS_FILE)]
    for key, loss in found:
        if abs(loss - wanted[key]) > rtol * abs(wanted[key]):
            yield f"{key} has loss {loss!r}, not {wanted[key]!r}"
    if missing := [key for key in wanted.keys() - {key for key, _ in found} if key[0] == "training"]:
        yield f"no line of {sorted(missing)}"


def _largest(reader: CheckpointReader, entry: TensorEntry) -> float:
    values = reader.load_rectangle(entry.name, whole(entry.shape), getattr(torch, entry.dtype))
    return float(values.abs().max())


def _key(line: dict[str, Any]) -> tuple[str, int]:
    return str(line.get("validation_set", "training")), int(line["step"])


def _loss(line: dict[str, Any]) -> float:
    return float(line["loss"] if "loss" in line else line["validation_loss"])
