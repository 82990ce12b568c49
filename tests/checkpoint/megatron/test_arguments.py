# SPDX-License-Identifier: Apache-2.0
from typing import Any

import numpy as np
import pytest

from megatron_core.checkpoint.megatron.arguments import model_config, read_arguments
from megatron_core.checkpoint.megatron.inert import Inert
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError

OLD: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "encoder_seq_length": 128,
    "layernorm_epsilon": 1e-3,
    "lr": 1e-4,
}


def config(**changes: Any) -> ModelConfig:
    return model_config(OLD | changes, 100, "here")


def test_an_old_checkpoint_says_little() -> None:
    found = config()
    assert (found.seq_length, found.norm_epsilon, found.ffn_size, found.head_dim) == (128, 1e-3, 256, 16)
    assert found.position_embedding_type == "learned_absolute" and not found.untie_embeddings_and_output_weights
    assert (found.query_groups, found.vocab_size, found.gelu) == (4, 100, "tanh")


@pytest.mark.parametrize(
    ("changes", "gelu"),
    [
        ({}, "tanh"),
        ({"bias_gelu_fusion": True}, "tanh"),
        ({"bias_gelu_fusion": False}, "exact"),
        ({"bias_gelu_fusion": True, "add_bias_linear": False}, "exact"),
        ({"bias_gelu_fusion": False, "openai_gelu": True}, "tanh"),
    ],
)
def test_which_gelu_it_was_trained_with_cnv_03(changes: dict[str, Any], gelu: str) -> None:
    assert config(**changes).gelu_form == gelu


def test_llama_under_the_names_of_three_forks() -> None:
    rope = {"use_rotary_position_embeddings": True, "add_position_embedding": False, "swiglu": True}
    for groups in (
        {"group_query_attention": True, "num_query_groups": 2},
        {"num_key_value_heads": 2},
        {"num_attention_heads_kv": 2},
    ):
        found = config(**rope, **groups, normalization="rmsnorm", rope_theta=5e5, ffn_hidden_size=96, norm_epsilon=1e-6)
        assert (found.query_groups, found.normalization, found.rotary_base) == (2, "RMSNorm", 5e5)
        assert (found.position_embedding_type, found.activation, found.ffn_size) == ("rope", "swiglu", 96)
        assert found.norm_epsilon == 1e-6
    assert config(num_key_value_heads=4).query_groups == 4
    assert config(glu_activation="swiglu").activation == "swiglu"
    assert config(position_embedding_type="rotary").position_embedding_type == "rope"
    assert config(add_position_embedding=False).position_embedding_type == "none"
    assert config(rotary_seq_len_interpolation_factor=2, **rope).rotary_seq_len_interpolation_factor == 2.0


def test_what_leaves_the_model_alone_is_no_matter() -> None:
    neutral = {"num_experts": [1], "window_size": None, "softmax_type": "vanilla", "rope_type": "rope", "spec": None}
    assert config(**neutral, multi_latent_attention=False, attention_backend=Inert("a.Backend", (5,))) == config()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": 8}, "num_experts 8: mixture-of-experts layers"),
        ({"num_experts": [4, 4]}, "num_experts a list: mixture"),
        ({"apply_layernorm_1p": True}, "apply_layernorm_1p True: that variant"),
        ({"window_size": (128, 0)}, r"window_size \(128, 0\): that variant"),
        ({"softmax_type": Inert("a.Softmax", (2,))}, "softmax_type <a.Softmax, not made>: that variant"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'; choose"),
        ({"position_embedding_type": Inert("a.Kind", (2,))}, "position_embedding_type is <a.Kind, not made>, not text"),
        ({"hidden_size": 63}, "--hidden-size 63 is not a multiple"),
        ({"hidden_size": -64}, "hidden-size"),
        ({"num_layers": 2.5}, "num_layers is 2.5, not a whole number"),
        ({"swiglu": "yes"}, "swiglu is 'yes', not true or false"),
        ({"layernorm_epsilon": float("nan")}, "norm_epsilon is nan, not a finite number"),
        ({"glu_activation": "geglu"}, "glu_activation 'geglu'"),
    ],
)
def test_what_cannot_be_had_is_told(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        config(**changes)


def test_all_problems_at_once() -> None:
    with pytest.raises(CheckpointError) as caught:
        config(num_experts=8, multi_latent_attention=True, num_layers="x")
    assert len(str(caught.value).splitlines()) == 4


def test_arguments_are_a_namespace() -> None:
    saved = Inert("argparse.Namespace", ())
    saved.state = {"num_layers": 2, 5: 6}
    assert read_arguments(saved, "here") == {"num_layers": 2}
    for other in (None, {"num_layers": 2}, Inert("argparse.Namespace", ()), Inert("os.system", ("x",))):
        with pytest.raises(CheckpointError, match="here holds no arguments"):
            read_arguments(other, "here")


def test_what_a_hostile_namespace_holds_does_no_harm() -> None:
    deep: Any = ()
    for _ in range(100_000):
        deep = (deep,)
    saved = Inert("argparse.Namespace", ())
    saved.state = OLD | {
        "num_layers": np.int64(2),
        "num_query_groups": np.arange(4),
        "swiglu": np.arange(2),
        "normalization": deep,
        "num_key_value_heads": 10**5000,
        "window_size": [deep],
        "lr": np.float64(0.5),
    }
    arguments = read_arguments(saved, "here")
    assert arguments["num_layers"] == 2 and arguments["lr"] == 0.5
    with pytest.raises(CheckpointError) as caught:
        model_config(arguments, 100, "here")
    assert "normalization is <tuple, not made>, not text" in str(caught.value)
    assert "swiglu is <ndarray, not made>, not true or false" in str(caught.value)
    assert "num_query_groups is <int, not made>, not a whole number" in str(caught.value)
