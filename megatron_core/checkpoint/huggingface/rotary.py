# SPDX-License-Identifier: Apache-2.0
"""Rotary settings of transformers' configs, of version 4 (rope_theta, rope_scaling) and 5 (rope_parameters), and ours.

Written are both, so that either version and vLLM read the same.
"""

from typing import Any

from megatron_core.attention.rotary import HIGH_FREQUENCY, LOW_FREQUENCY, ORIGINAL_CONTEXT
from megatron_core.checkpoint.huggingface.settings import Settings
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError

_BASE = 10000.0
_LLAMA3 = {
    "low_freq_factor": LOW_FREQUENCY,
    "high_freq_factor": HIGH_FREQUENCY,
    "original_max_position_embeddings": ORIGINAL_CONTEXT,
}


def read_rotary(
    settings: Settings, *, base: str = "rope_theta", share: str = "partial_rotary_factor", default_share: float = 1.0
) -> dict[str, Any]:
    """Fields of ModelConfig that say how positions rotate.

    `base` and `share`: keys of the base and of the rotated share of a head outside of rope_parameters. Raises
    CheckpointError for what our rotary embedding does not do.
    """
    inner = settings.merged("rope_parameters", "rope_scaling")
    # Version 4 saves a family's own names beside the common ones.
    found_base = settings.same_number(base, "rope_theta")
    found_share = settings.same_number(share, "partial_rotary_factor")
    fields: dict[str, Any] = {
        "position_embedding_type": "rope",
        "rotary_base": inner.number("rope_theta", _BASE if found_base is None else found_base),
        "rotary_percent": inner.number("partial_rotary_factor", default_share if found_share is None else found_share),
    }
    kind = inner.text("type", "default")
    kind = inner.text("rope_type", kind)
    if kind == "linear":
        factor = inner.number("factor")
        fields["rotary_seq_len_interpolation_factor"] = None if factor == 1.0 else factor
    elif kind == "llama3":
        fields |= {"use_rope_scaling": True, "rope_scaling_factor": inner.number("factor")}
        for key, value in _LLAMA3.items():
            inner.require(key, value, "rotary positions are rescaled with Llama 3's constants alone", default=None)
    elif kind != "default":
        raise CheckpointError(f"rope_type {kind}: rotary positions are rescaled as in linear or llama3 alone")
    inner.refuse_rest()
    return fields


def write_rotary(
    model: ModelConfig, *, base: str = "rope_theta", share: str = "partial_rotary_factor", default_share: float = 1.0
) -> dict[str, Any]:
    """Keys of a config.json that say the same; the share is left out where it is what an absent key means."""
    scaling: dict[str, Any] = {}
    if model.use_rope_scaling:
        scaling = {"rope_type": "llama3", "factor": model.rope_scaling_factor, **_LLAMA3}
    elif model.rotary_seq_len_interpolation_factor is not None:
        scaling = {"rope_type": "linear", "factor": model.rotary_seq_len_interpolation_factor}
    part = {} if model.rotary_percent == default_share else {"partial_rotary_factor": model.rotary_percent}
    return {
        base: model.rotary_base,
        **({share: model.rotary_percent} if part else {}),
        "rope_scaling": scaling or None,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rotary_base, **part, **scaling},
    }
