# SPDX-License-Identifier: Apache-2.0
"""What a run has left in its --save directory: columns of its metrics, tensors and scalars of its checkpoints."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from megatron_core.checkpoint.directory import read_manifest, step_directory
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import whole
from megatron_core.training.metrics import METRICS_FILE, read_metrics

CURVE = ("loss", "grad_norm", "lr", "loss_scale", "batch_size", "consumed_samples", "skipped")
"""The columns that time has no part in."""


def columns(save: Path, *names: str) -> dict[int, tuple[Any, ...]]:
    """These columns of every training step, by its number, in full precision; of the last try of each step."""
    lines = read_metrics(save / METRICS_FILE)
    return {line["step"]: tuple(line[name] for name in names) for line in lines if "loss" in line}


def curve(save: Path, after: int = 0) -> dict[int, tuple[Any, ...]]:
    """All that a step's line holds but times and memory, of the steps behind `after`."""
    return {step: line for step, line in columns(save, *CURVE).items() if step > after}


def saved_tensors(save: Path, step: int) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, whole, as it was stored."""
    manifest = read_manifest(save, step)
    with CheckpointReader(step_directory(save, step), manifest) as reader:
        return {
            entry.name: reader.load_rectangle(entry.name, whole(entry.shape), getattr(torch, entry.dtype))
            for entry in manifest.tensors
        }


def saved_bits(save: Path, step: int) -> dict[str, bytes]:
    """`saved_tensors` as their bytes: minus zero is another number, and one NaN is like another."""
    return {name: values.view(torch.uint8).numpy().tobytes() for name, values in saved_tensors(save, step).items()}


def saved_scalars(save: Path, step: int) -> dict[str, Any]:
    """The scalar state of a checkpoint, but for the time that training took."""
    state = dict(read_manifest(save, step).state)
    del state["elapsed_s"]
    return state


def assert_same_end(save: Path, straight: Path, step: int) -> None:
    """The checkpoints of a step are the same in every bit of every tensor and in every scalar."""
    found, expected = saved_bits(save, step), saved_bits(straight, step)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    assert saved_scalars(save, step) == saved_scalars(straight, step)


def assert_close(save: Path, straight: Path, step: int, *, after: int) -> None:
    """DESIGN's equal to 1e-10 for the curve behind `after` and for every tensor at `step`, moments too."""
    found, expected = curve(save, after), curve(straight, after)
    assert found.keys() == expected.keys() and list(expected)[-1] == step
    pairs = {"curve": (list(found.values()), list(expected.values()))}
    tensors, wanted = saved_tensors(save, step), saved_tensors(straight, step)
    assert tensors.keys() == wanted.keys()
    pairs |= {name: (tensors[name].numpy(), wanted[name].numpy()) for name in wanted}
    for name, (got, want) in pairs.items():
        got, want = np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64)
        # A column of the curve has its own size; a tensor is one.
        limit = 1e-10 * np.max(np.abs(want), axis=0 if name == "curve" else None) + 1e-12
        assert np.all(np.abs(got - want) <= limit), f"{name}: {got} is not {want}"
