# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint.megatron.legacy_read import open_legacy
from megatron_core.checkpoint.megatron.reference_forward import reference_logits
from megatron_core.config.model import ModelConfig
from megatron_core.model.gpt import ChunkPlan
from megatron_core.tensor_parallel.shard_spec import spec_parameters
from tests.checkpoint.megatron.trees import weights, write_legacy
from tests.small_model import make_factory, make_microbatch, make_model, small

ROPE = {"position_embedding_type": "rope", "rotary_base": 100.0}
GROUPED = {"group_query_attention": True, "num_query_groups": 2, "kv_channels": 16}


def our_logits(config: ModelConfig, ours: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and the logits of the model that trains."""
    chunk = make_model(make_factory(config), ChunkPlan(range(config.num_layers)))
    with torch.no_grad():
        for parameter in spec_parameters(chunk):
            parameter.spec.real(parameter).copy_(ours[parameter.spec.name])
        batch = make_microbatch(config)
        assert chunk.head is not None and batch.tokens is not None
        logits = chunk.head.logits(chunk.residual_stream(None, batch))
    return batch.tokens, logits.transpose(0, 1)[..., : config.vocabulary]


@pytest.mark.parametrize(
    "config",
    [
        small(),
        small(gelu="exact", norm_epsilon=0.3, untie_embeddings_and_output_weights=True),
        small(squared_relu=True, position_embedding_type="none", add_bias_linear=False),
        small(swiglu=True, ffn_hidden_size=40, normalization="RMSNorm", norm_epsilon=0.3, **ROPE, **GROUPED),
        small(qk_layernorm=True, rotary_percent=0.5, rotary_interleaved=True, **ROPE, **GROUPED),
        small(rotary_seq_len_interpolation_factor=4.0, **ROPE),
        small(use_rope_scaling=True, rope_scaling_factor=4.0, rotary_base=1e7, position_embedding_type="rope"),
    ],
)
def test_it_computes_what_our_model_computes(tmp_path: Path, config: ModelConfig) -> None:
    ours = {name: values / 4 for name, values in weights(config).items()}
    opened = open_legacy(write_legacy(tmp_path, ours, config, tp=2, names="te"))
    tokens, expected = our_logits(config, ours)
    found = reference_logits(opened, config, tokens)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-12 * expected.abs().max()


def test_other_numbers_give_other_logits(tmp_path: Path) -> None:
    """That the comparison would find what conversions get wrong: form of GELU, epsilon, query-key-value order."""
    config = small()
    ours = {name: values / 4 for name, values in weights(config).items()}
    tokens, expected = our_logits(config, ours)
    swapped = dict(ours)
    name = "layers.0.attention.kv.weight"
    swapped[name] = ours[name].flip(1)
    for tree, other, held in (
        ("gelu", small(gelu="exact"), ours),
        ("eps", small(norm_epsilon=1e-3), ours),
        ("kv", config, swapped),
    ):
        opened = open_legacy(write_legacy(tmp_path / tree, held, other))
        gap = (reference_logits(opened, other, tokens) - expected).abs().max() / expected.abs().max()
        assert gap > 1e-6, tree
