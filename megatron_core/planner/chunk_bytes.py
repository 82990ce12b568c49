# SPDX-License-Identifier: Apache-2.0
"""What a chunk of this project's model keeps of a microbatch, from action to action, in bytes of one rank."""

from dataclasses import dataclass

from megatron_core.planner.layer_bytes import LayerBytes
from megatron_core.planner.workload import Workload

_GPU_BLOCK_BYTES = 1 << 28
_CPU_BLOCK_BYTES = 1 << 20
"""Of logits widened at once (`tensor_parallel/vocab_cross_entropy.py`)."""


@dataclass(frozen=True)
class ChunkBytes:
    """Of one microbatch on one chunk."""

    kept: int
    """From the end of F to the end of B or I, the chunk's input included."""
    forward: int
    """Most that F has beside what it keeps."""
    backward: int
    """Most that B has beside what F has kept and the gradient that came."""
    input_gradient: int
    """The same of I."""
    queued: int
    """From I to W: inputs of weight gradients and gradients of outputs."""
    weight: int
    """Most that W has beside that."""


def chunk_bytes(work: Workload, k: int, *, on_cpu: bool = False) -> ChunkBytes:
    """Of virtual stage k."""
    size = LayerBytes(work, on_cpu=on_cpu)
    layers, last = len(work.layers[k]), k == len(work.layers) - 1
    again = work.recompute.full_layers(layers)
    group = min(work.recompute.num_layers if work.recompute.method == "uniform" else 1, again)
    groups = -(-again // group) if again else 0
    leave = min(work.offloaded_layers, layers)  # of recomputed layers their groups' inputs do
    inputs_away, away = min(-(-leave // group), groups) if again else 0, max(leave - again, 0)
    staying = layers - again - away
    kept = (groups - inputs_away + staying) * size.stream + staying * size.kept
    kept += size.stream if leave and k else 0  # the pipeline holds the chunk's input for its gradient
    made = group * size.kept + (group - 1) * size.stream if again else 0
    plain = layers - again
    made = max(made - plain * (size.kept + size.stream), 0)
    # Of layers on their way out or in at most two are here at once, and one while the last one that stays computes.
    leaving = max(min(away, 2) - staying, 0) * (size.kept + size.stream)
    coming = max(min(away, 1) + min(staying, 1), min(away, 2), staying) - staying
    coming *= size.kept + size.stream
    forward = size.forward if plain else 0
    if again:  # the first layers, before the others have kept anything
        forward = max(forward, size.forward_of_recomputed - plain * (size.kept + size.stream))
    outside = _embedding(work, size) if k == 0 else 0
    outside += _shared(work, size, sees_tokens=k == 0 or last)
    queued, weight = layers * size.queued, size.weight_temporary(size.matrix)
    backward, deferred = (size.backward() + made, size.backward(deferred=True) + made) if layers else (0, 0)
    if again:
        deferred = max(deferred, queued - size.queued - kept + size.kept + size.backward(deferred=True))
    if last:
        logits = size.tokens * work.vocabulary_rows * size.itemsize
        table = size.weight_temporary(work.vocabulary_rows * work.model.hidden_size)
        freed = 2 * size.stream + logits + size.norm + (10 + 3 * size.wide) * size.tokens
        outside += freed
        gradient = size.stream
        block = _CPU_BLOCK_BYTES if on_cpu else _GPU_BLOCK_BYTES
        at_head = size.whole_stream + size.gathered
        at_norm = size.norm_backward - size.stream - logits
        backward = max(backward + gradient - freed, at_head + table, at_norm)
        deferred = max(deferred + gradient - size.stream, at_head)
        forward = max(forward - freed, 0 if size.itemsize >= 4 else min(2 * logits, block))
        queued, weight = queued + size.stream + logits, max(weight, table)
    return ChunkBytes(kept + outside, forward + leaving, backward + coming, deferred + coming, queued, weight)


def _embedding(work: Workload, size: LayerBytes) -> int:
    """What looking up keeps beside the first layer's input."""
    return size.tokens * 9 + (size.stream + size.norm if work.model.embed_layernorm else 0) + size.dropped


def _shared(work: Workload, size: LayerBytes, *, sees_tokens: bool) -> int:
    """What all layers of a chunk look at: cosines and sines, and which tokens may see which."""
    model, shared = work.model, 0
    if model.position_embedding_type == "rope":
        rows = size.tokens if sees_tokens or work.masked else model.seq_length
        shared += rows * int(model.head_dim * model.rotary_percent) * size.itemsize
    if work.masked:
        shared += size.tokens * model.seq_length
    return shared
