# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint of ours as a legacy checkpoint of Megatron-LM (--ckpt-format torch), for any layout of its.

It is written under another name. It gets its own when all of it has been read back, and the tracker, which Megatron
looks for, comes last.
"""

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from megatron_core.checkpoint.files import naming, sync_directory
from megatron_core.checkpoint.megatron.legacy_read import open_legacy
from megatron_core.checkpoint.megatron.legacy_stage import parameter_dtype, write_stage
from megatron_core.checkpoint.megatron.open_megatron import TRACKER
from megatron_core.checkpoint.megatron.opened import OpenedMegatron
from megatron_core.checkpoint.megatron.parameters import Parameter, parameters
from megatron_core.checkpoint.megatron.target import Target
from megatron_core.checkpoint.megatron.verify_export import verify_export
from megatron_core.checkpoint.stored_model import StoredModel
from megatron_core.checkpoint.verify import ReportBytes
from megatron_core.config.run import RunConfig
from megatron_core.config.validate import model_violations
from megatron_core.errors import CheckpointError, ConfigError

Check = Callable[[OpenedMegatron], None]
"""Called with what was written; raises where it must not get its name."""


def iteration_name(step: int) -> str:
    """A step's directory there. Megatron takes no iteration 0, but a release, from which training starts at 0."""
    return f"iter_{step:07d}" if step else "release"


def export_legacy(
    stored: StoredModel, output: Path, target: Target, *, report: ReportBytes, check: Check | None = None
) -> Path:
    """Write the iteration's directory into <output>, a --save directory of Megatron's, and make it its newest.

    `report` hears of bytes written and then of those compared, `export_bytes` in all; `check` may refuse what was
    written. Raises ConfigError where Megatron has no such model or layout, CheckpointError where the checkpoint does
    not hold what its config says, or the iteration is there; nothing is left then.
    """
    wanted = _exported(stored, target)
    directory = output / iteration_name(stored.manifest.step)
    if os.path.lexists(directory):
        raise CheckpointError(f"{directory} is there already: give another --output")
    unfinished = directory.with_name(f".{directory.name}.unfinished")
    with naming("make", unfinished):
        shutil.rmtree(unfinished, ignore_errors=True)  # the rest of an export that was killed
        unfinished.mkdir(parents=True)
    try:
        for rank in range(target.pipeline_model_parallel_size):
            write_stage(stored, wanted, target, rank, unfinished, report)
        sync_directory(unfinished)
        opened = open_legacy(unfinished)
        verify_export(opened, stored, report)
        if check is not None:
            check(opened)
        with naming("write", directory):
            os.rename(unfinished, directory)
        sync_directory(output)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    _write_tracker(output, str(stored.manifest.step or "release"))
    return directory


def export_bytes(stored: StoredModel, target: Target) -> int:
    """Bytes that `export_legacy` will report. Raises as it does."""
    wanted = _exported(stored, target)
    tp = target.tensor_model_parallel_size
    written = sum(
        math.prod(parameter.shape) * parameter_dtype(stored, parameter).itemsize * (tp if parameter.whole else 1)
        for rank in range(target.pipeline_model_parallel_size)
        for chunk in target.chunks_of(stored.model, wanted, rank)
        for parameter in chunk.values()
    )
    return written + sum(math.prod(stored.shape(name)) * stored.dtype(name).itemsize for name in stored.names)


def _exported(stored: StoredModel, target: Target) -> list[Parameter]:
    """Megatron's parameters of a stored model. Raises as `export_legacy`."""
    if stored.model.num_layers > len(stored.names):
        raise CheckpointError(
            f"{stored.directory} says {stored.model.num_layers} layers but holds {len(stored.names)} weights"
        )
    if found := model_violations(RunConfig(model=stored.model), 1):
        raise ConfigError("\n  ".join([f"{stored.directory} holds no model that can be:", *found]))
    wanted = parameters(stored.model, target.padded_vocab_size(stored.model))
    target.check(stored.model, wanted)
    parts = {part.name: part for parameter in wanted for part in parameter.parts}
    for name, part in parts.items():
        if stored.shape(name) != part.shape:
            raise CheckpointError(f"{name} has shape {stored.shape(name)}, but the config makes it {part.shape}")
    if rest := sorted(set(stored.names) - parts.keys()):
        raise CheckpointError(f"{len(rest)} weights have no place in a model of Megatron-LM, such as {rest[0]}")
    return wanted


def _write_tracker(output: Path, text: str) -> None:
    """Name the iteration as the newest one, in one step."""
    unfinished = output / f".{TRACKER}.unfinished"
    with naming("write", output / TRACKER):
        unfinished.write_text(text)
        os.rename(unfinished, output / TRACKER)
    sync_directory(output)
