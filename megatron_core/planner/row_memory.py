# SPDX-License-Identifier: Apache-2.0
"""Memory in the convention of a published row: what was counted, of which rank, in which unit."""

from dataclasses import dataclass

from megatron_core.planner.hardware import Hardware
from megatron_core.planner.memory import MemoryModel
from megatron_core.planner.parameters import layer_parameters
from megatron_core.planner.program_memory import held_microbatches, layer_bytes
from megatron_core.planner.rows import Row
from megatron_core.planner.workload import Workload

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("GB", 10**9))
_STATE_BYTES = 18
"""Of Korthikanti et al. 2022: 16-bit weights, fp32 gradients, masters, moments."""


def unit_bytes(row: Row) -> int:
    """Bytes of the unit in which a row's memory is given; GB where its `memory_kind` names none."""
    return next((size for name, size in _UNITS if name in row.get("memory_kind", "")), 10**9)


@dataclass(frozen=True)
class RowMemory:
    """What is predicted for a row."""

    nbytes: int
    unit: int
    """The row's `unit_bytes`."""
    fits: bool
    """Whether every rank's memory fits into its device."""

    @property
    def in_unit(self) -> float:
        """In the row's own unit."""
        return self.nbytes / self.unit

    @property
    def gb(self) -> float:
        """In 10^9 bytes."""
        return self.nbytes / 1e9


def row_memory(row: Row, workload: Workload, hardware: Hardware) -> RowMemory:
    """Of a row whose step is `workload`.

    Formula rows have weights, optimizer and activations of the layers of the first stage and nothing else. nvidia-smi
    shows all that a process has taken, and was read on the first node, which has the first stage; where some stage does
    not fit it is that of the one that needs most. Other rows have the most that tensors took on any rank.
    """
    kind = row.get("memory_kind", "")
    stages = MemoryModel(workload, hardware).stages
    fits = max(memory.total for memory in stages) <= hardware.device.memory_gb * 1e9
    if "formula" in kind or "params+optimizer" in kind:
        nbytes = formula_bytes(workload)
    elif not kind or "nvidia-smi" in kind:
        nbytes = stages[0].total if fits else max(memory.total for memory in stages)
    else:
        nbytes = max(memory.live for memory in stages)
    return RowMemory(nbytes, unit_bytes(row), fits)


def formula_bytes(workload: Workload) -> int:
    """Of the first stage's layers, as in figure 1 of Korthikanti et al. 2022."""
    held = sum(len(workload.layers[k]) for k in workload.stage_chunks(0))
    shared = workload.dp if workload.distributed_optimizer else 1
    states = (_STATE_BYTES - 12) + 12 / shared
    scores = workload.recompute.granularity is None and not workload.engine.flash_attention
    kept = layer_bytes(workload, scores=scores)
    if workload.recompute.granularity == "full":
        kept = 2 * workload.model.seq_length * workload.micro_batch * workload.model.hidden_size
    return round(
        held * (states * layer_parameters(workload.model, workload.tp) + held_microbatches(workload, 0) * kept)
    )
