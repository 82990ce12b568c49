# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from megatron_core.checkpoint.huggingface.families import FAMILIES, family_for, family_of
from megatron_core.checkpoint.huggingface.link import by_ours, by_theirs
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError, ConfigError
from megatron_core.tensor_parallel.shard_spec import spec_parameters
from tests.small_model import make_factory, make_model, small

ROPE = {"position_embedding_type": "rope"}
GATED = {**ROPE, "normalization": "RMSNorm", "swiglu": True, "add_bias_linear": False, "ffn_hidden_size": 24}
GROUPED = {"group_query_attention": True, "num_query_groups": 2}
UNTIED = {"untie_embeddings_and_output_weights": True}
MODELS = {
    "gpt2": small(),
    "gpt_neox": small(**ROPE, **UNTIED, use_parallel_residual=True, rotary_percent=0.5),
    "llama": small(**GATED, **GROUPED),
    "mistral": small(**GATED, **UNTIED, kv_channels=6),
    "qwen2": small(**GATED, **GROUPED, add_qkv_bias=True),
    "qwen3": small(**GATED, **GROUPED, qk_layernorm=True, kv_channels=12),
}
BIASED = small(**GATED | {"add_bias_linear": True})


@pytest.mark.parametrize(("name", "model"), [*MODELS.items(), ("llama", BIASED)])
def test_links_hold_every_number_of_both_sides_once(name: str, model: ModelConfig) -> None:
    links = list(FAMILIES[name].links(model))
    ours = {p.spec.name: p.spec.shape for p in spec_parameters(make_model(make_factory(model)))}
    assert {key: parts[0].ours_shape for key, parts in by_ours(links).items()} == ours
    for parts in by_ours(links).values():
        covered = torch.zeros(parts[0].ours_shape)
        for item in parts:
            item.part_of_ours(covered).add_(1)
        assert (covered == 1).all(), parts
    for parts in by_theirs(links).values():
        covered = torch.zeros(parts[0].theirs_shape)
        for item in parts:
            assert item.theirs_shape == parts[0].theirs_shape
            item.part_of_theirs(covered).add_(1)
        assert (covered == 1).all(), parts


@pytest.mark.parametrize("name", MODELS)
def test_a_model_fits_its_family(name: str) -> None:
    assert family_for(MODELS[name], name) is FAMILIES[name]
    assert family_for(MODELS[name]) is FAMILIES["llama" if name == "mistral" else name]
    assert family_of(name) is FAMILIES[name]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"embed_layernorm": True}, "gpt2: embed_layernorm True, not False\n"),
        ({"position_embedding_type": "none"}, "gpt2: position_embedding_type none, not learned_absolute\n"),
        ({"normalization": "RMSNorm"}, "gpt2: normalization RMSNorm, not LayerNorm\n"),
        ({"add_bias_linear": False}, "gpt2: add_bias_linear False, not True\n"),
        ({"kv_channels": 10}, "gpt2: head_dim 10, not 8\n"),
        ({**ROPE, "rotary_interleaved": True}, "gpt_neox: rotary_interleaved True, not False\n"),
        ({**ROPE, **GROUPED}, "gpt_neox: query_groups 2, not 4\n"),
        ({**GATED, "rotary_percent": 0.5}, "llama: rotary_percent 0.5, not 1.0\n"),
        ({**GATED, "num_attention_heads": 5, "kv_channels": 8}, "llama: hidden_size 32 is no multiple of 5 heads\n"),
    ],
)
def test_what_no_family_computes_is_refused_with_all_reasons(change: dict[str, object], reason: str) -> None:
    model = small(**change)
    wanted = reason.partition(":")[0]
    with pytest.raises(ConfigError, match=r"no family of transformers computes what this model does") as caught:
        family_for(model, wanted)
    assert reason in f"{caught.value}\n"


def test_what_trains_alike_or_computes_alike_does_not_matter() -> None:
    model = small(z_loss_coeff=1e-4, embedding_gradient_shrink=0.1, apply_query_key_layer_scaling=True)
    assert family_for(model) is FAMILIES["gpt2"]


def test_all_families_are_asked() -> None:
    with pytest.raises(ConfigError) as caught:
        family_for(small(embed_layernorm=True))
    assert all(f"\n  {name}: embed_layernorm True, not False" in str(caught.value) for name in FAMILIES)
    with pytest.raises(CheckpointError, match="model_type 'opt' is not read here; known are gpt2, gpt_neox, llama"):
        family_of("opt")
