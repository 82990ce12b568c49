# SPDX-License-Identifier: Apache-2.0
"""What Megatron's parameters are called in its checkpoints since 2019, as the names that `parameters` has.

Before Megatron core: language_model.encoder.layers.3.mlp.dense_h_to_4h.weight (nested dictionaries), with transformer
for encoder and attention for self_attention at first. With Transformer Engine a norm belongs to the linear after it:
decoder.layers.3.mlp.linear_fc1.layer_norm_weight.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from megatron_core.checkpoint.megatron.file_tensor import FileTensor
from megatron_core.checkpoint.megatron.parameters import EMBEDDING, HEAD
from megatron_core.errors import CheckpointError

_LAYER = re.compile(r"(?:encoder|transformer|decoder)\.layers\.([0-9]{1,6})\.(.+)", re.ASCII)
_IN_LAYER = (
    (r"input_(?:layernorm|norm)\.(weight|bias)", r"input_layernorm.\1"),
    (r"self_attention\.linear_qkv\.layer_norm_(weight|bias)", r"input_layernorm.\1"),
    (r"(?:self_)?attention\.query_key_value\.(weight|bias)", r"self_attention.linear_qkv.\1"),
    (r"(?:self_)?attention\.dense\.(weight|bias)", r"self_attention.linear_proj.\1"),
    (r"(?:self_)?attention\.([qk])_layernorm\.(weight|bias)", r"self_attention.\1_layernorm.\2"),
    (r"self_attention\.(linear_qkv|linear_proj)\.(weight|bias)", r"self_attention.\1.\2"),
    (r"(?:post_attention|pre_mlp)_(?:layernorm|norm)\.(weight|bias)", r"pre_mlp_layernorm.\1"),
    (r"mlp\.linear_fc1\.layer_norm_(weight|bias)", r"pre_mlp_layernorm.\1"),
    (r"mlp\.(?:dense_h_to_4h|linear_fc1)\.(weight|bias)", r"mlp.linear_fc1.\1"),
    (r"mlp\.(?:dense_4h_to_h|linear_fc2)\.(weight|bias)", r"mlp.linear_fc2.\1"),
)
_OUTSIDE = (
    (r"embedding\.word_embeddings\.weight", EMBEDDING),
    (r"embedding\.position_embeddings\.weight", "embedding.position_embeddings.weight"),
    (r"(?:encoder|transformer|decoder)\.final_(?:layernorm|norm)\.(weight|bias)", r"decoder.final_layernorm.\1"),
    (r"(?:output_layer|word_embeddings_for_head)\.weight", HEAD),
)
_IGNORED = re.compile(r"(?:.*\.)?(?:_extra_state|rotary_pos_emb\.inv_freq|rotary_emb\.inv_freq)(?:/.*)?")
_MAX_DEPTH = 8


def canonical(name: str) -> tuple[int | None, str] | None:
    """(layer as the name counts it, the name of `parameters` without that number), or None for what is no weight.

    Within a layer the result is such as "mlp.linear_fc1.weight". Raises LookupError where a name is not known.
    """
    if _IGNORED.fullmatch(name):
        return None
    name = name.removeprefix("module.").removeprefix("language_model.")
    layer = _LAYER.fullmatch(name)
    for pattern, replacement in _OUTSIDE if layer is None else _IN_LAYER:
        if match := re.fullmatch(pattern, name if layer is None else layer[2]):
            return (None if layer is None else int(layer[1])), match.expand(replacement)
    raise LookupError(name)


def global_name(layer: int | None, rest: str) -> str:
    """The name of `parameters`."""
    return rest if layer is None else f"decoder.layers.{layer}.{rest}"


def layer_of(name: str) -> int | None:
    """The layer of a name of `parameters`; None outside of the layers."""
    match = _LAYER.fullmatch(name)
    return None if match is None else int(match[1])


def flattened(weights: Mapping[Any, Any], origin: str) -> Iterator[tuple[str, FileTensor]]:
    """Tensors of nested dictionaries with their names joined by dots; what is no tensor is left out.

    Raises CheckpointError where the nesting has no end.
    """
    pending: list[tuple[str, Mapping[Any, Any], int]] = [("", weights, 0)]
    while pending:
        prefix, items, depth = pending.pop()
        if depth > _MAX_DEPTH:
            raise CheckpointError(f"{origin}: weights nested more than {_MAX_DEPTH} deep")
        for key, value in items.items():
            if not isinstance(key, str):
                continue
            if isinstance(value, dict):
                pending.append((f"{prefix}{key}.", value, depth + 1))
            elif isinstance(value, FileTensor):
                yield f"{prefix}{key}", value
