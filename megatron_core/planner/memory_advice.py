# SPDX-License-Identifier: Apache-2.0
"""What a layout needs that did not fit, and which flags would make it fit: each is tried on the formula."""

from collections.abc import Iterator

from megatron_core.planner.memory_parts import Memory
from megatron_core.planner.stage_memory import stage_memory
from megatron_core.planner.workload import Recompute, Workload


def memory_advice(workload: Workload, stage: int, capacity: int) -> str:
    """For a rank of `stage` whose device has `capacity` bytes."""
    needed = stage_memory(workload, stage)
    lines = [
        f"The planner expects {_gb(needed.total)} of {_gb(capacity)} on stage {stage} (tp {workload.tp} x pp "
        f"{workload.pp} x dp {workload.dp}): {_parts(needed)}.",
    ]
    tried = [(flag, changed, stage_memory(changed, stage).total) for flag, changed in _changes(workload)]
    for flag, _, total in sorted(tried, key=lambda one: one[2]):
        if total < needed.total:
            lines.append(f"  {flag}: {_gb(total)}{'' if total <= capacity else ', which is still too much'}")
    if len(lines) == 1:
        lines.append("  No flag saves anything here: cut the model over more ranks, by tensor or pipeline parallelism.")
    elif min(total for _, _, total in tried) > capacity:
        lines.append(_together(workload, stage, capacity))
    return "\n".join(lines)


def _together(workload: Workload, stage: int, capacity: int) -> str:
    """All that there is to change, one after the other."""
    flags: list[str] = []
    while (change := next(_changes(workload), None)) is not None:
        flags.append(change[0])
        workload = change[1]
        total = stage_memory(workload, stage).total
        if total <= capacity:
            return f"  {' '.join(flags)}: {_gb(total)}"
    return f"  All together: {_gb(total)}. Cut the model over more ranks, by tensor or pipeline parallelism."


def _changes(work: Workload) -> Iterator[tuple[str, Workload]]:
    """Flags that save memory, those that cost least time first."""
    if work.tp > 1 and not work.sequence_parallel:
        yield "--sequence-parallel", work.replace(sequence_parallel=True)
    if work.dp > 1 and not work.distributed_optimizer:
        yield "--use-distributed-optimizer", work.replace(distributed_optimizer=True)
    if work.schedule == "gpipe" and work.pp > 1:
        yield "--pipeline-schedule 1f1b", work.replace(schedule="1f1b")
    if work.micro_batch > 1 and work.micro_batch % 2 == 0:
        half = work.replace(micro_batch=work.micro_batch // 2, microbatches=2 * work.microbatches)
        yield f"--micro-batch-size {half.micro_batch}", half
    if work.recompute.granularity != "full" and not work.offloaded_layers:
        yield "--recompute-granularity full", work.replace(recompute=Recompute(granularity="full"))
    if not work.optimizer_offload:
        host = work.replace(optimizer_offload=True, offload_gradients=work.pp == 1)
        yield "--optimizer-cpu-offload", host


def _parts(memory: Memory) -> str:
    return ", ".join(f"{name} {_gb(value)}" for name, value in vars(memory).items() if value)


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
