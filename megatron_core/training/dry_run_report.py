# SPDX-License-Identifier: Apache-2.0
"""What `--dry-run` prints: every collective in order, then counts, parameters and bytes."""

import itertools
from collections import Counter

from megatron_core.config.run import RunConfig
from megatron_core.errors import ConfigError
from megatron_core.planner.memory_parts import Memory, allowance
from megatron_core.planner.stage_memory import stage_memory
from megatron_core.planner.workload import Workload
from megatron_core.training.dry_run import Communicated, DryRun, dry_run, model_parameters, vocabulary
from megatron_core.training.live_bytes import CATEGORIES
from megatron_core.training.mesh import grid_of

_LAYERS_IN_A_MINUTE = 720
"""Forwards and backwards of single layers."""


def dry_run_report(config: RunConfig, world_size: int, rank: int | None) -> str:
    """Text about a step of `rank`; of the first rank of the stage that needs most memory, if it is None.

    config: resolved. Raises ConfigError for a rank that the world does not have, DataError without a vocabulary.
    """
    grid = grid_of(config, world_size)
    workload = planned(config, world_size)
    if rank is None:
        rank = grid.rank(pp=max(range(grid.pp), key=lambda stage: stage_memory(workload, stage).live))
    if not 0 <= rank < world_size:
        raise ConfigError(f"--rank {rank} is none of {world_size} ranks: give 0 to {world_size - 1}")
    played = _played(workload)
    found = dry_run(config, world_size, rank, most=played)
    layers = ", ".join(f"{part.start}-{part.stop - 1}" if part else "none" for part in found.layers)
    lines = [
        *_order(found.communicated),
        "",
        *_counts(found.communicated),
        "",
        f"rank {rank} of {world_size}: stage {found.stage} of {grid.pp} (layers {layers}), tp {grid.tp} x pp {grid.pp} "
        f"x dp {grid.dp}, {workload.microbatches} microbatches{_shortened(played, workload.microbatches)}",
        f"{model_parameters(config, vocabulary(config)):,} parameters in all, {found.parameters:,} on this rank",
        f"between stages {list(found.message_shape)}",
        *_bytes(found, stage_memory(workload, found.stage), workload),
    ]
    return "\n".join(lines) + "\n"


def _played(work: Workload) -> int:
    """Microbatches that are gone through: all, unless that takes minutes and the later ones only repeat the first."""
    layers = -(-work.model.num_layers // work.pp)
    return min(work.microbatches, max(_LAYERS_IN_A_MINUTE // layers, 2 * work.pp))


def _shortened(played: int, microbatches: int) -> str:
    return "" if played == microbatches else f", of which the first {played} were gone through: the others repeat them"


def planned(config: RunConfig, world_size: int) -> Workload:
    """The step of a resolved config, whose vocabulary a tokenizer may have to tell."""
    return Workload.of(config.with_vocabulary(vocabulary(config)), world_size)


def _order(communicated: tuple[Communicated, ...]) -> list[str]:
    """One line each, those that follow their like on the same line."""
    lines = ["communicated, in order:"]
    for text, same in itertools.groupby(map(_told, communicated)):
        lines.append(f"{len(list(same)):5d} x {text}")
    return lines


def _told(one: Communicated) -> str:
    where = one.call.channel if one.call.op in ("send", "receive") else f"{one.call.group} of {len(one.call.members)}"
    return f"{one.call.op} {where} {list(one.shape)} {str(one.dtype).removeprefix('torch.')}"


def _counts(communicated: tuple[Communicated, ...]) -> list[str]:
    counts, nbytes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for one in communicated:
        counts[one.call.op, one.call.group] += 1
        nbytes[one.call.op, one.call.group] += one.nbytes
    return [f"{counts[key]:6d} {key[0]:15s} {key[1]:6s} {nbytes[key] / 1e9:10.3f} GB" for key in sorted(counts)]


def _bytes(found: DryRun, formula: Memory, workload: Workload) -> list[str]:
    live = found.live_bytes
    return [
        "live at the peak, bytes:",
        *(f"{live[category]:18,} {category}" for category in CATEGORIES),
        f"{formula.live:18,} by the planner's formula",
        f"{allowance(workload, live['total']):18,} allowance for CUDA, NCCL and the allocator",
    ]
