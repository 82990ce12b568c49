# SPDX-License-Identifier: Apache-2.0
"""Bytes that this project's program needs on a rank of a stage: states, and what is live while the schedule is played.

The stage's own program of actions and exchanges is walked through, so that what is live at once is what the runtime
holds, for any schedule, split and number of microbatches.
"""

from collections.abc import Sequence
from functools import cache

from megatron_core.config.parallel import ScheduleName
from megatron_core.pipeline.action import Action, Exchange, Kind, Program
from megatron_core.pipeline.communicate import communicate
from megatron_core.pipeline.schedules import build
from megatron_core.planner.chunk_bytes import chunk_bytes
from megatron_core.planner.layer_bytes import LayerBytes
from megatron_core.planner.linears import linears
from megatron_core.planner.memory_parts import Memory, allowance
from megatron_core.planner.parameters import stage_parameters, table_parameters
from megatron_core.planner.workload import Workload

_LANES = 2
"""Of the pool through which gradients leave the device (`data_parallel/gradient_pool.py`)."""


def stage_memory(workload: Workload, stage: int, *, on_cpu: bool = False) -> Memory:
    """Of a rank of this stage, at the worst moment of a step.

    on_cpu: gloo says of a send that it is over only when something came back from the same stage.
    """
    count = stage_parameters(workload, stage)
    weights, gradients = workload.itemsize * count, _gradients(workload, stage, count)
    optimizer = _optimizer(workload, count)
    walk = _Walk(workload, stage, on_cpu=on_cpu)
    walk.through(_program(workload.schedule, workload.pp, workload.chunks, _walked(workload))[stage])
    buffers = walk.peak - walk.peak_kept + _batch(workload, stage)
    live = weights + gradients + optimizer + walk.peak_kept + buffers
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=walk.peak_kept,
        buffers=buffers,
        allowance=0 if on_cpu else allowance(workload, live),
    )


def _walked(work: Workload) -> int:
    """Microbatches after which nothing new is to be seen: but with GPipe, which keeps all, twice the stages."""
    p, m = work.pp, work.microbatches
    return m if work.schedule == "gpipe" else min(m, 2 * p + m % p)


@cache
def _program(name: ScheduleName, p: int, v: int, m: int) -> Program:
    return communicate(build(name, p, v, m), v)


def _optimizer(work: Workload, count: int) -> int:
    """Moments, and masters of 16-bit weights."""
    if work.optimizer_offload:
        return 0
    states = (2 if work.itemsize >= 4 else 3) * max(work.itemsize, 4)
    return states * count // (work.dp if work.distributed_optimizer else 1)


def _gradients(work: Workload, stage: int, count: int) -> int:
    """All of them, or where matrices' leave for the host: the other ones, and lanes of the largest bucket."""
    if not work.offload_gradients:
        return work.gradient_itemsize * count
    matrices = [out * features_in for out, features_in in reversed(linears(work.model, work.tp))]  # in backward order
    layers = sum(len(work.layers[k]) for k in work.stage_chunks(stage))
    streamed = layers * sum(matrices)
    tables = [table_parameters(work)] if work.model.untie_embeddings_and_output_weights else []
    buckets = _filled([*tables, *matrices * layers, *tables], work.bucket_size)
    resident = count - streamed - sum(2 * tables)
    return work.gradient_itemsize * (resident + _LANES * max(buckets))


def _filled(sizes: Sequence[int], limit: int) -> list[int]:
    """Elements of the buckets that parameters of these sizes fill (`data_parallel/buckets.py`)."""
    buckets = [0]
    for size in sizes:
        if buckets[-1] and buckets[-1] + size > limit:
            buckets.append(0)
        buckets[-1] += size
    return buckets


def _batch(work: Workload, stage: int) -> int:
    """Tokens, labels, mask and positions of the whole step where they are looked at; positions elsewhere."""
    positions = 8 * work.model.seq_length
    if stage not in (0, work.pp - 1) and not work.masked:
        return positions
    fields = 5 if work.masked else 4
    return positions + (fields * 8 + 1) * work.microbatches * work.micro_batch * work.model.seq_length


class _Walk:
    """Bytes beside the states, action by action."""

    def __init__(self, work: Workload, stage: int, *, on_cpu: bool) -> None:
        self._virtual = work.stage_chunks(stage)
        self._chunks = [chunk_bytes(work, k, on_cpu=on_cpu) for k in self._virtual]
        self._last, self._alone = len(work.layers) - 1, work.pp == 1
        self._message, self._keeps_sends = LayerBytes(work).stream, on_cpu
        self._held = self._exchanges = self._messages = 0
        self._sending: list[tuple[int, int]] = []  # to which stage, in which exchange
        self._arriving: dict[tuple[str, int, int], tuple[int, int]] = {}  # from which stage, in which exchange
        self.peak = self.peak_kept = self._kept = 0

    def through(self, program: Sequence[Action | Exchange]) -> None:
        """All of a stage's program."""
        for item in program:
            if isinstance(item, Exchange):
                self._exchange(item)
            else:
                self._perform(item)

    def _perform(self, action: Action) -> None:
        chunk, k = self._chunks[action.chunk], self._virtual[action.chunk]
        match action.kind:
            case Kind.F:
                if k > 0:
                    self._arrived("activation", action)
                    self._messages -= 1
                self._reach(chunk.kept + chunk.forward)
                self._kept += chunk.kept
                self.peak_kept = max(self.peak_kept, self._kept)
                self._messages += k < self._last
            case Kind.B | Kind.I:
                if k < self._last:
                    self._arrived("gradient", action)
                self._reach(chunk.backward if action.kind is Kind.B else chunk.input_gradient)
                self._messages += (k > 0) - (k < self._last)
                self._kept -= chunk.kept
                if action.kind is Kind.I:
                    self._held += chunk.queued
                self._reach(0)
            case Kind.W:
                self._reach(chunk.weight)
                self._held -= chunk.queued

    def _reach(self, more: int) -> None:
        live = self._kept + self._held + self._messages * self._message + more
        self.peak = max(self.peak, live)

    def _arrived(self, payload: str, action: Action) -> None:
        """What was sent before to the stage that this comes from has arrived there."""
        if self._alone:
            return
        peer, exchange = self._arriving.pop((payload, action.microbatch, action.chunk))
        self._let_go([sent for sent in self._sending if sent[0] == peer and sent[1] <= exchange])

    def _exchange(self, exchange: Exchange) -> None:
        if not self._keeps_sends:
            self._let_go(list(self._sending))
        for transfer in exchange.transfers:
            if transfer.send:
                self._sending.append((transfer.peer, self._exchanges))
            else:
                self._messages += 1
                key = (transfer.payload, transfer.microbatch, transfer.chunk)
                self._arriving[key] = (transfer.peer, self._exchanges)
        self._exchanges += 1
        self._reach(0)

    def _let_go(self, sent: list[tuple[int, int]]) -> None:
        for one in sent:
            self._sending.remove(one)
        self._messages -= len(sent)
