# SPDX-License-Identifier: Apache-2.0
"""What a run has left in its --save directory: columns of its metrics, and whether its last state is another run's."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from megatron_core.checkpoint.directory import read_manifest, step_directory
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import whole
from megatron_core.training.metrics import METRICS_FILE, read_metrics
from tests.e2e.same_run import scalar_differences, tensor_differences

CURVE = ("loss", "grad_norm", "lr", "loss_scale", "batch_size", "consumed_samples", "skipped")
"""The columns that time and memory have no part in."""


def columns(save: Path, *names: str) -> dict[int, tuple[Any, ...]]:
    """These columns of every training step, by its number, in full precision; of the last try of each step."""
    lines = read_metrics(save / METRICS_FILE)
    return {line["step"]: tuple(line[name] for name in names) for line in lines if "loss" in line}


def curve(save: Path, after: int = 0) -> dict[int, tuple[Any, ...]]:
    """All of CURVE, of the steps behind `after`."""
    return {step: line for step, line in columns(save, *CURVE).items() if step > after}


def validation_losses(save: Path) -> dict[int, float]:
    """By the step after which the validation was."""
    lines = read_metrics(save / METRICS_FILE)
    return {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}


def saved_tensors(save: Path, step: int, section: str) -> dict[str, torch.Tensor]:
    """The tensors of a section of a checkpoint, whole, by their names in it."""
    manifest = read_manifest(save, step)
    with CheckpointReader(step_directory(save, step), manifest) as reader:
        return {
            entry.name.removeprefix(f"{section}/"): reader.load_rectangle(
                entry.name, whole(entry.shape), getattr(torch, entry.dtype)
            )
            for entry in manifest.tensors
            if entry.name.startswith(f"{section}/")
        }


def assert_same_end(save: Path, straight: Path, step: int) -> None:
    """The checkpoints of a step are the same in every bit of every tensor and in every scalar."""
    found = [*scalar_differences(save, straight, step), *tensor_differences(save, straight, step)]
    assert found == []


def assert_close(save: Path, straight: Path, step: int, *, after: int) -> None:
    """DESIGN's equal to 1e-10, for the curve behind `after`, and for every tensor at `step`, moments too."""
    found, expected = curve(save, after), curve(straight, after)
    assert found.keys() == expected.keys() and list(expected)[-1] == step
    got, want = (np.array(list(lines.values()), dtype=np.float64) for lines in (found, expected))  # [steps, columns]
    assert np.all(np.abs(got - want) <= 1e-10 * np.abs(want).max(axis=0) + 1e-12), f"{got} is not {want}"
    assert list(tensor_differences(save, straight, step, rtol=1e-10)) == []
