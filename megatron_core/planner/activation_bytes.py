# SPDX-License-Identifier: Apache-2.0
"""What this project's model keeps of one microbatch for backward, and what it makes on the way, in bytes of one rank.

Follows `model/`, `attention/` and `tensor_parallel/` tensor by tensor: what autograd saves, what linears keep, what is
a view of something else and so costs nothing. Letters as in docs/notation.md.
"""

from dataclasses import dataclass
from functools import cached_property

from megatron_core.planner.workload import Workload

_GPU_BLOCK_BYTES = 1 << 28
"""Of logits widened at once (`tensor_parallel/vocab_cross_entropy.py`)."""


@dataclass(frozen=True)
class ChunkBytes:
    """Of one microbatch on one chunk."""

    kept: int
    """From the end of F to the end of B or I, the chunk's input included."""
    forward: int
    """Most that F has beside what it keeps."""
    backward: int
    """Most that B or I has beside what F has kept."""
    queued: int
    """From I to W: inputs of weight gradients and gradients of outputs."""
    weight: int
    """Most that W has beside that."""


class ActivationBytes:
    """Of one workload's layers and chunks."""

    def __init__(self, workload: Workload) -> None:
        work, model = workload, workload.model
        self._work, self._model, self._size = work, model, work.itemsize
        self._wide = max(work.itemsize, 4)
        self._tokens = model.seq_length * work.micro_batch
        self._cut = work.tp if work.sequence_parallel else 1
        self._heads = model.num_attention_heads // work.tp
        self._modules = work.recompute.modules if work.recompute.granularity == "selective" else ()

    @cached_property
    def stream(self) -> int:
        """Residual stream as a rank has it, [s, b, h] or with sequence parallelism [s/tp, b, h]."""
        return self._whole // self._cut

    @cached_property
    def _whole(self) -> int:
        return self._tokens * self._model.hidden_size * self._size

    @cached_property
    def _statistics(self) -> int:
        """Of one norm: a number a row for RMSNorm, two for LayerNorm."""
        return self._tokens // self._cut * self._wide * (1 if self._model.normalization == "RMSNorm" else 2)

    @cached_property
    def _queries(self) -> int:
        return self._tokens * self._heads * self._model.head_dim * self._size

    @cached_property
    def _keys(self) -> int:
        return self._tokens * max(self._model.query_groups // self._work.tp, 1) * self._model.head_dim * self._size

    @cached_property
    def _inner(self) -> int:
        """The MLP's width."""
        return self._tokens * (self._model.ffn_size // self._work.tp) * self._size

    @cached_property
    def _dropped(self) -> int:
        """One mask of hidden dropout."""
        return self._tokens // self._cut * self._model.hidden_size if self._model.hidden_dropout else 0

    def weight_temporary(self, elements: int) -> int:
        """The product that is added to a gradient of another type."""
        return elements * self._size if self._work.gradient_itemsize != self._size else 0

    @cached_property
    def layer(self) -> int:
        """What a layer keeps beside its input, if it is not recomputed whole."""
        norms = 2 * self._statistics + (0 if self._model.use_parallel_residual else self.stream)
        inputs = 0 if "layernorm" in self._modules else 2 * self.stream
        return norms + inputs + self._attention + self._mlp + 2 * self._dropped

    @cached_property
    def _attention(self) -> int:
        model = self._model
        rotary, normed = model.position_embedding_type == "rope", model.qk_layernorm
        kept = self._queries + 2 * self._keys  # as the projection made them; values are a view
        if normed:
            rows = (self._queries + self._keys) // (model.head_dim * self._size)
            kept += rows * self._wide * (1 if model.normalization == "RMSNorm" else 2)
        if normed or rotary:
            kept += self._keys + (self._queries if normed else 0)
        return kept + self._queries + (0 if "core_attn" in self._modules else self._core)

    @cached_property
    def _core(self) -> int:
        """Of scores to weighted values, inputs and output apart."""
        rows = self._tokens * self._heads
        if not self._model.attention_dropout:
            return rows * self._wide  # of each row, the logarithm of its sum
        probabilities = rows * self._model.seq_length
        # Softmax, the mask, what is left; queries and keys once more as matrices, keys and values repeated.
        return probabilities * (self._wide + 1 + self._size) + 3 * self._queries

    @cached_property
    def _mlp(self) -> int:
        if "mlp" in self._modules:
            return 0
        return (4 if self._model.swiglu else 2) * self._inner

    @cached_property
    def down(self) -> int:
        """Elements of the projection back to h."""
        return self._model.hidden_size * self._model.ffn_size // self._work.tp

    @cached_property
    def layer_backward(self) -> int:
        """Most that a layer's backward has beside what was kept of it: in the MLP's."""
        gated = 2 if self._model.swiglu else 1
        gathered = self._whole if self._cut > 1 else 0
        gradient = self.stream * (2 if self._dropped else 1)
        at_down = gathered + self._inner + self.weight_temporary(self.down)
        at_up = (2 * gated - 1 - (3 if gated == 2 else 2)) * self._inner + 2 * gathered + self._whole
        at_up += self.weight_temporary(gated * self.down)
        made_again = self._made_in_mlp if "mlp" in self._modules else 0
        return gradient + made_again + max(at_down, at_up)

    @cached_property
    def _made_in_mlp(self) -> int:
        return (4 if self._model.swiglu else 2) * self._inner

    @cached_property
    def layer_queued(self) -> int:
        """Of one layer, from I to W."""
        gated = 2 if self._model.swiglu else 1
        inputs = 2 * self.stream + self._queries + self._inner
        gradients = 2 * self.stream + self._queries + 2 * self._keys + gated * self._inner
        return inputs + gradients

    @cached_property
    def _partial(self) -> int:
        """A row-parallel linear's output before it is scattered."""
        return self._whole if self._cut > 1 else 0

    def chunk(self, k: int) -> ChunkBytes:
        """Virtual stage k."""
        work, layers = self._work, len(self._work.layers[k])
        again = work.recompute.full_layers(layers)
        group = min(work.recompute.num_layers if work.recompute.method == "uniform" else 1, again)
        plain = layers - again
        kept = ((-(-again // group) if again else 0) + plain) * self.stream + plain * self.layer
        backward = self.layer_backward if layers else 0
        forward = 2 * self.stream + self._partial
        if again:
            made = group * self.layer + (group - 1) * self.stream
            backward += max(made - plain * (self.layer + self.stream), 0)
            forward += self.stream + (3 if self._model.swiglu else 2) * self._inner
        queued = layers * self.layer_queued
        if self._model.position_embedding_type == "rope":
            kept += self._rotary(k)
        if k == 0:
            kept += self._embedding
        if k == len(work.layers) - 1:
            kept += self._head
            at_head = self._whole * (2 if self._cut > 1 else 1) + self._table_temporary
            backward = max(backward - self._logits - self.stream, at_head)
            forward = max(forward, 0 if self._size >= 4 else min(2 * self._logits, _GPU_BLOCK_BYTES))
            queued += self.stream + self._logits
        return ChunkBytes(kept, forward, backward, queued, self.weight_temporary(self.down))

    def _rotary(self, k: int) -> int:
        width = int(self._model.head_dim * self._model.rotary_percent)
        samples = self._work.micro_batch if k in (0, len(self._work.layers) - 1) else 1
        return self._model.seq_length * samples * width * self._size

    @cached_property
    def _embedding(self) -> int:
        """What looking up keeps beside the first layer's input."""
        normed = self.stream + self._statistics if self._model.embed_layernorm else 0
        return self._tokens * 9 + normed + self._dropped

    @cached_property
    def _logits(self) -> int:
        return self._tokens * self._work.vocabulary_rows * self._size

    @cached_property
    def _table_temporary(self) -> int:
        return self.weight_temporary(self._work.vocabulary_rows * self._model.hidden_size)

    @cached_property
    def _head(self) -> int:
        """Final norm, logits, and some numbers a token."""
        per_token = 8 + 1 + 3 * self._wide + 1
        return 2 * self.stream + self._statistics + self._logits + per_token * self._tokens
