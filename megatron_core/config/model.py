# SPDX-License-Identifier: Apache-2.0
"""What is trained: the shape of the GPT and the options that change its function.

Field names are Megatron-LM's flags. Sizes that follow from others are properties, so that a config never has to be
filled in later; `None` means "derived" and the property next to it says how.
"""

import math
from dataclasses import dataclass
from typing import Literal

Gelu = Literal["auto", "tanh", "exact"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The architecture: a function of this section alone, whatever the layout."""

    num_layers: int = 0
    """Transformer layers (required)."""
    hidden_size: int = 0
    """Width h of the residual stream (required)."""
    num_attention_heads: int = 0
    """Query heads a (required)."""
    seq_length: int = 0
    """Tokens per sample s (required)."""
    max_position_embeddings: int = 0
    """Rows of the learned position table; at least seq_length (required with learned positions)."""
    ffn_hidden_size: int | None = None
    """Width f of the MLP. Unset: 4h, or int(8h/3 / 64) * 64 with --swiglu."""
    kv_channels: int | None = None
    """Dimension d of a head. Unset: hidden_size / num_attention_heads."""
    group_query_attention: bool = False
    """Share each key/value head among several query heads (with num_query_groups)."""
    num_query_groups: int = 1
    """Key/value heads g; read only with --group-query-attention."""
    vocab_size: int | None = None
    """True number of tokens v, at least what the tokenizer has. Unset: just that."""
    make_vocab_size_divisible_by: int = 128
    """Storage of the vocabulary is padded to lcm(this, tp); padding rows stand outside the softmax and all sums."""
    padded_vocab_size: int | None = None
    """Storage size of the vocabulary given outright; at least the true vocabulary and a multiple of tp."""

    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    """Norm before attention, before the MLP and at the end."""
    norm_epsilon: float = 1e-5
    """Added to the variance (LayerNorm) or mean square (RMSNorm) under the root."""
    swiglu: bool = False
    """Gated MLP: silu(gate) * up."""
    gelu: Gelu = "auto"
    """Form of GELU. auto is Megatron's rule: tanh where its fused kernel runs (linears with biases), else exact."""
    squared_relu: bool = False
    """relu(x)^2 instead of GELU."""
    position_embedding_type: Literal["learned_absolute", "rope", "none"] = "learned_absolute"
    """How positions enter."""
    rotary_base: float = 10000.0
    """Base of the rotary frequencies."""
    rotary_percent: float = 1.0
    """Share of each head's dimensions that is rotated."""
    rotary_interleaved: bool = False
    """Rotate pairs (2i, 2i+1) instead of halves (i, i + d/2)."""
    rotary_seq_len_interpolation_factor: float | None = None
    """Divide positions by this (linear position interpolation)."""
    use_rope_scaling: bool = False
    """Llama 3's frequency-dependent rescaling of long wavelengths."""
    rope_scaling_factor: float = 8.0
    """Factor of --use-rope-scaling."""
    add_bias_linear: bool = True
    """Biases in all linears (Megatron: --disable-bias-linear)."""
    add_qkv_bias: bool = False
    """Biases in the query/key/value projection alone."""
    qk_layernorm: bool = False
    """Normalise each head's query and key."""
    use_parallel_residual: bool = False
    """Attention and MLP of a layer both read its input, each through its own norm (GPT-J, GPT-NeoX)."""
    untie_embeddings_and_output_weights: bool = False
    """Give the output head its own weights."""

    hidden_dropout: float = 0.1
    """Dropout after embedding, attention and MLP."""
    attention_dropout: float = 0.1
    """Dropout of attention probabilities."""
    embed_layernorm: bool = False
    """Norm right after the embedding (BLOOM)."""
    embedding_gradient_shrink: float = 1.0
    """Multiply the embedding output's gradient by this, its value unchanged (GLM-130B: 0.1)."""
    z_loss_coeff: float = 0.0
    """Add this times mean(log Z)^2 of the output softmax to the loss (PaLM)."""
    apply_query_key_layer_scaling: bool = False
    """Scale scores by 1/l before and l inside the softmax at layer l: equal in exact arithmetic, safer in fp16."""
    init_method_std: float = 0.02
    """Standard deviation of the weights at the start; output projections use this / sqrt(2 L)."""

    @property
    def head_dim(self) -> int:
        """Dimension d of one attention head."""
        return self.kv_channels or self.hidden_size // max(self.num_attention_heads, 1)

    @property
    def ffn_size(self) -> int:
        """Width f of the MLP."""
        if self.ffn_hidden_size is not None:
            return self.ffn_hidden_size
        return int(4 * self.hidden_size * 2 / 3 / 64) * 64 if self.swiglu else 4 * self.hidden_size

    @property
    def query_groups(self) -> int:
        """Key/value heads g."""
        return self.num_query_groups if self.group_query_attention else self.num_attention_heads

    @property
    def activation(self) -> Literal["swiglu", "squared_relu", "gelu_tanh", "gelu_exact"]:
        """The MLP's activation, with --gelu auto resolved."""
        if self.swiglu:
            return "swiglu"
        if self.squared_relu:
            return "squared_relu"
        return "gelu_tanh" if self.gelu_form == "tanh" else "gelu_exact"

    @property
    def gelu_form(self) -> Gelu:
        """Which GELU, with auto resolved; auto stays where the MLP has no GELU."""
        if self.gelu != "auto" or self.swiglu or self.squared_relu:
            return self.gelu
        return "tanh" if self.add_bias_linear else "exact"

    @property
    def vocabulary(self) -> int:
        """True number of tokens; an assertion when the tokenizer has not been asked yet."""
        assert self.vocab_size is not None, "vocab_size is known only after the tokenizer was built"
        return self.vocab_size

    def padded_vocabulary(self, tp: int) -> int:
        """Rows stored over all tp ranks: the true vocabulary rounded up to a multiple of lcm(divisor, tp)."""
        if self.padded_vocab_size is not None:
            return self.padded_vocab_size
        multiple = math.lcm(self.make_vocab_size_divisible_by, tp)
        return -(-self.vocabulary // multiple) * multiple
