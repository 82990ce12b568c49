# SPDX-License-Identifier: Apache-2.0
"""Bytes that other programs need of a device, for published measurements: facts about their code, with its year.

States. Megatron-LM keeps 16-bit weights, gradients, fp32 masters and moments. DeepSpeed's ZeRO-1 shares out masters,
moments and fp32 copies of gradients. Before a step it flattens: until mid 2021 the gradients of all ranks, and then an
interval of 5e8 elements (stage1.py); later what a rank owns, with buckets of 5e8 elements for reducing and gathering
(stage_1_and_2.py). Without ZeRO its optimizer casts all gradients to fp32 and flattens the casts. ZeRO-2 with an
optimizer on the host keeps weights and two buckets.

Activations are those of table 2 of Korthikanti et al. 2022. DeepSpeed's pipeline engine holds what it sent until the
gradient has come. Softmax over the vocabulary is taken of fp32 logits, beside the 16-bit ones.

torch's allocator gives blocks of one size to nothing larger. Where a first backward lays gradients into what the head
has left behind, the memory of head and of recomputation adds up; where gradients have memory of their own it is shared.
"""

from megatron_core.planner.memory_parts import Memory, allowance, microbatches_at_once
from megatron_core.planner.parameters import stage_parameters
from megatron_core.planner.workload import Workload

_DEEPSPEED_BUCKET = 500_000_000
"""Elements; DeepSpeed's default for reducing and for gathering."""
_LOGIT_BYTES = 2 + 4 + 4
"""16-bit logits, fp32 ones, and their exponentials, which become the gradient."""


def program_memory(workload: Workload, stage: int) -> Memory:
    """Of a rank of this stage, at the worst moment of a step."""
    weights, gradients, optimizer, flattened = _states(workload, stage_parameters(workload, stage))
    activations = round(held_microbatches(workload, stage) * _kept(workload, stage))
    buffers = flattened + round(_transient(workload, stage))
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        buffers=buffers,
        allowance=allowance(workload, weights + gradients + optimizer + activations + buffers),
    )


def held_microbatches(work: Workload, stage: int) -> float:
    """Microbatches whose activations a stage holds at once, those of weight gradients that are put off included."""
    if work.schedule == "zero-bubble":
        return min(work.pp, work.microbatches)
    return microbatches_at_once(work, stage)


def layer_bytes(work: Workload, *, scores: bool) -> float:
    """What one layer keeps of a microbatch that is not recomputed whole (Korthikanti et al. 2022, table 2).

    scores: softmax, its dropout mask and the dropout's output [b, a, s, s] too.
    """
    model, t = work.model, work.tp
    h, stream = model.hidden_size, _stream(work)
    whole = 10 / t if work.sequence_parallel else 10.0
    heads = 4 * (model.num_attention_heads + model.query_groups) * model.head_dim / h
    mlp = (8 if model.swiglu else 4) * model.ffn_size / h
    attention = 5 * model.num_attention_heads * model.seq_length / h if scores else 0.0
    return stream * (whole + (heads + mlp + attention) / t)


def _stream(work: Workload) -> int:
    """Elements [s, b, h]."""
    return work.model.seq_length * work.micro_batch * work.model.hidden_size


def _is_deepspeed(work: Workload) -> bool:
    return "DeepSpeed" in work.engine.name


def _states(work: Workload, count: int) -> tuple[int, int, int, int]:
    """Bytes of weights, gradients and optimizer, and of what a step flattens on its way."""
    bucket = 2 * min(count, _DEEPSPEED_BUCKET)
    shared = work.dp if work.distributed_optimizer else 1
    if work.offload_gradients:
        return 2 * count, 2 * bucket, 0, 0
    if not _is_deepspeed(work):
        return 2 * count, work.engine.gradient_bytes * count, 12 * count // shared, 0
    if not work.distributed_optimizer:
        return 2 * count, 2 * count, 12 * count, (4 + 4) * count
    flattened = 2 * count + bucket if "2021" in work.engine.name else 2 * count // shared + 2 * bucket
    return 2 * count, 2 * count, (12 + 4) * count // shared, flattened


def _kept(work: Workload, stage: int) -> float:
    """Of one microbatch from its forward to its backward, on all chunks of a stage."""
    stream = 2 * _stream(work)
    counts = [len(work.layers[k]) for k in work.stage_chunks(stage)]
    again = sum(work.recompute.full_layers(count) for count in counts)
    scores = not work.engine.flash_attention and work.recompute.granularity != "selective"
    kept = again * stream / (work.tp if work.sequence_parallel else 1)
    kept += (sum(counts) - again) * layer_bytes(work, scores=scores)
    if stage == 0 and work.model.embed_layernorm:
        kept += stream
    if work.pp > 1 and _is_deepspeed(work):
        kept += stream
    return kept


def _transient(work: Workload, stage: int) -> float:
    """What is made on the way: messages, the head's logits, what recomputation makes again."""
    messages = 4 * _stream(work) if work.pp > 1 else 0
    head = 0
    if stage == work.pp - 1:
        head = _LOGIT_BYTES * work.model.seq_length * work.micro_batch * work.vocabulary_rows
    again = 0.0
    unfused = not work.engine.flash_attention
    if work.recompute.granularity == "full":
        again = layer_bytes(work, scores=unfused)
    elif work.recompute.granularity == "selective" and unfused:
        again = layer_bytes(work, scores=True) - layer_bytes(work, scores=False)
    adds_up = _is_deepspeed(work) and not work.offload_gradients
    return messages + (head + again if adds_up else max(head, again))
