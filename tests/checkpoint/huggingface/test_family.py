# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from transformers.activations import ACT2FN

from megatron_core.checkpoint.huggingface.family import different, positions, read_activation, write_activation
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError
from megatron_core.model.mlp import MLP
from tests.small_model import make_factory, small

X = torch.linspace(-4, 4, 101, dtype=torch.float64)


def ours(**fields: object) -> torch.Tensor:
    """The activation that an MLP of these fields applies."""
    mlp = MLP(make_factory(small(add_bias_linear=False, ffn_hidden_size=32, **fields)), 0)
    with torch.no_grad():
        mlp.up.weights[0].copy_(torch.eye(32))
        mlp.down.weight.copy_(torch.eye(32))
        return mlp(X.view(-1, 1, 1).expand(-1, 1, 32))[:, 0, 0]


@pytest.mark.parametrize("name", ["gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu2"])
def test_an_activation_is_the_function_of_that_name(name: str) -> None:
    torch.testing.assert_close(ours(**read_activation(name)), ACT2FN[name](X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fields", [{"gelu": "tanh"}, {"gelu": "exact"}, {"gelu": "auto"}, {"squared_relu": True}])
def test_the_name_written_is_that_of_the_function_used(fields: dict[str, object]) -> None:
    name = write_activation(small(add_bias_linear=False, **fields))
    torch.testing.assert_close(ours(**fields), ACT2FN[name](X), rtol=1e-6, atol=1e-6)
    assert write_activation(ModelConfig()) == "gelu_new"  # with biases, auto is the tanh form


def test_other_activations_are_refused() -> None:
    with pytest.raises(CheckpointError, match="activation quick_gelu: an MLP without gate has gelu, "):
        read_activation("quick_gelu")


def test_differences_are_told_by_field() -> None:
    model = ModelConfig(embed_layernorm=True, swiglu=True)
    assert different(model, {"swiglu": False, "normalization": "LayerNorm"}) == [
        "embed_layernorm True, not False",
        "swiglu True, not False",
    ]


def test_positions() -> None:
    assert positions(ModelConfig(seq_length=64)) == 64
    assert positions(ModelConfig(seq_length=64, max_position_embeddings=128)) == 128
