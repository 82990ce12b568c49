# SPDX-License-Identifier: Apache-2.0
"""What one of this project's layers keeps of a microbatch for backward, and what it makes on the way, in bytes.

Follows `model/`, `attention/` and `tensor_parallel/` tensor by tensor: what autograd saves, what linears keep, what is
a view of something else and so costs nothing. Letters as in docs/notation.md.
"""

from functools import cached_property

from megatron_core.planner.workload import Workload


class LayerBytes:
    """Of one workload's layers, on one tp rank."""

    def __init__(self, workload: Workload, *, on_cpu: bool = False) -> None:
        """on_cpu: RMSNorm is not fused there, and keeps what lies between."""
        work, model = workload, workload.model
        self._work, self._model, self._on_cpu = work, model, on_cpu
        self.itemsize, self.wide = work.itemsize, max(work.itemsize, 4)
        self.tokens = model.seq_length * work.micro_batch
        self.sharded = work.tp if work.sequence_parallel else 1
        """Ranks that share the residual stream out."""
        self._gated = 2 if model.swiglu else 1
        self._heads = model.num_attention_heads // work.tp
        self._modules = work.recompute.modules if work.recompute.granularity == "selective" else ()

    @cached_property
    def whole_stream(self) -> int:
        """[s, b, h]."""
        return self.tokens * self._model.hidden_size * self.itemsize

    @cached_property
    def stream(self) -> int:
        """The residual stream as a rank has it: with sequence parallelism [s/tp, b, h]."""
        return self.whole_stream // self.sharded

    @cached_property
    def gathered(self) -> int:
        """What sequence parallelism gathers, or has before it scatters."""
        return self.whole_stream if self.sharded > 1 else 0

    @cached_property
    def norm(self) -> int:
        """What a norm keeps beside its input: a number a row for RMSNorm, two for LayerNorm."""
        rows = self.tokens // self.sharded
        return rows * self.wide * (1 if self._model.normalization == "RMSNorm" else 2) + self._between(self.stream)

    @cached_property
    def norm_backward(self) -> int:
        """Gradients of output and input, and on a CPU what lies between."""
        return (4 if self._between(self.stream) else 2) * self.stream

    def _between(self, normed: int) -> int:
        """What a CPU's RMSNorm of so many bytes keeps too: the result before its weight; of 16 bits, the wide input."""
        if self._model.normalization != "RMSNorm" or not self._on_cpu:
            return 0
        return normed + (0 if self.itemsize >= 4 else normed // self.itemsize * self.wide)

    @cached_property
    def inner(self) -> int:
        """The MLP's width, [s, b, f/tp]."""
        return self.tokens * (self._model.ffn_size // self._work.tp) * self.itemsize

    @cached_property
    def dropped(self) -> int:
        """A mask of hidden dropout."""
        return self.tokens // self.sharded * self._model.hidden_size if self._model.hidden_dropout else 0

    def weight_temporary(self, elements: int) -> int:
        """The product that is added to a gradient of another type."""
        return elements * self.itemsize if self._work.gradient_itemsize != self.itemsize else 0

    @cached_property
    def kept(self) -> int:
        """Beside a layer's input, if it is not recomputed whole."""
        norms = 2 * self.norm + (0 if self._model.use_parallel_residual else self.stream)
        inputs = 0 if "layernorm" in self._modules else 2 * self.stream
        return norms + inputs + self._attention + self._kept_in_mlp + 2 * self.dropped

    @cached_property
    def _queries(self) -> int:
        return self.tokens * self._heads * self._model.head_dim * self.itemsize

    @cached_property
    def _keys(self) -> int:
        return self.tokens * max(self._model.query_groups // self._work.tp, 1) * self._model.head_dim * self.itemsize

    @cached_property
    def _attention(self) -> int:
        """From projection to output projection, whose input is counted here."""
        model = self._model
        rotary, normed = model.position_embedding_type == "rope", model.qk_layernorm
        made = self._queries + 2 * self._keys  # by the projection; values are a view of it
        if normed:
            rows = (self._queries + self._keys) // (model.head_dim * self.itemsize)
            made += rows * self.wide * (1 if model.normalization == "RMSNorm" else 2)
            made += self._between(self._queries + self._keys)
        if normed or rotary:
            made += self._keys + (self._queries if normed else 0)
        if model.attention_dropout and "core_attn" not in self._modules and not normed:
            made -= (3 if rotary else 2) * self._keys  # only their copies are kept
        return made + self._queries + (0 if "core_attn" in self._modules else self._core)

    @cached_property
    def _probabilities(self) -> int:
        """Elements [b, a, s, s], which exist with attention dropout alone."""
        return self.tokens * self._heads * self._model.seq_length if self._model.attention_dropout else 0

    @cached_property
    def _core(self) -> int:
        """Of scores to weighted values, beside inputs and output."""
        if not self._probabilities:
            return self.tokens * self._heads * 4  # of each row, the logarithm of its sum
        # Softmax, the mask, what is left of it; keys and values, repeated for all heads.
        return self._probabilities * (self.wide + 1 + self.itemsize) + 2 * self._queries

    @cached_property
    def _core_forward(self) -> int:
        """Most that the core has beside what it keeps."""
        return max(self._probabilities * (3 * self.wide - self.itemsize), 0)

    @cached_property
    def _made_in_mlp(self) -> int:
        return (4 if self._model.swiglu else 2) * self.inner

    @cached_property
    def _kept_in_mlp(self) -> int:
        return 0 if "mlp" in self._modules else self._made_in_mlp

    @cached_property
    def matrix(self) -> int:
        """Elements of a projection between h and the MLP's width."""
        return self._model.hidden_size * self._model.ffn_size // self._work.tp

    @cached_property
    def forward(self) -> int:
        """Most that F has beside what it has kept by then."""
        before_mlp = self._core_forward - self._kept_in_mlp - 2 * self.stream
        return max(2 * self.stream + self.gathered, before_mlp)

    @cached_property
    def forward_of_recomputed(self) -> int:
        """The same where nothing but the layer's input is kept."""
        mlp = 3 * self.stream + self.gathered + (3 if self._model.swiglu else 2) * self.inner
        return max(mlp, 2 * self.stream + self._core_forward + (self._core if self._probabilities else 0))

    def backward(self, *, deferred: bool = False) -> int:
        """Most that a layer's backward has beside what was kept of it, gradient of its output apart.

        deferred: weight gradients are made later.
        """
        temporary = 0 if deferred else self.weight_temporary(self.matrix)
        at_down = self.gathered + self.inner + temporary
        # Gradients of the product and of both its factors; of a square, what torch makes on the way to it.
        at_gate = self.inner * {"swiglu": 2, "squared_relu": 3}.get(self._model.activation, 0)
        freed = self._made_in_mlp - self._gated * self.inner
        at_up = 2 * self.gathered + self.whole_stream + self._gated * temporary - freed
        again = self._made_in_mlp if "mlp" in self._modules else 0
        in_core = 0
        if self._probabilities:
            run = self._core_forward + self._core if "core_attn" in self._modules else 0
            in_core = max(run, 2 * self.wide * self._probabilities) - self._kept_in_mlp - 2 * self.stream
        return again + (self.stream if self.dropped else 0) + max(at_down, at_gate, at_up, in_core)

    @cached_property
    def queued(self) -> int:
        """From I to W: inputs of linears and gradients of their outputs."""
        inputs = 2 * self.stream + self._queries + self.inner
        gradients = 2 * self.stream + self._queries + 2 * self._keys + self._gated * self.inner
        return inputs + gradients
