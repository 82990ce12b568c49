# SPDX-License-Identifier: Apache-2.0
"""What there is to know of one family of transformers' models: its config both ways, and where each weight lies."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from megatron_core.checkpoint.huggingface.link import Link
from megatron_core.checkpoint.huggingface.settings import Settings
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model_type."""

    name: str
    """Its model_type."""
    architecture: str
    """The class with the head in transformers."""
    read_config: Callable[[Settings], ModelConfig]
    """Raises CheckpointError for what ours is not. Reads every key that it understands."""
    write_config: Callable[[ModelConfig], dict[str, Any]]
    """Of a model without misfits."""
    misfits: Callable[[ModelConfig], list[str]]
    """Why a model of ours is none of this family; empty where it is one."""
    links: Callable[[ModelConfig], Iterable[Link]]
    """All weights, those of a tied head once."""
    prefix: str
    """Begins the names of all weights but the head; files of the model without head leave it out."""
    head: str
    """Name of the head's weight, which files of tied models may hold too."""
    unused: str
    """Regular expression of tensors that old files hold and no model of today reads."""


_GELU = {
    "gelu": "exact",
    "gelu_python": "exact",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_pytorch_tanh": "tanh",
}


def read_activation(name: str) -> dict[str, Any]:
    """Fields of ModelConfig for the activation of an MLP without gate. Raises CheckpointError."""
    if name == "relu2":
        return {"squared_relu": True}
    if name not in _GELU:
        raise CheckpointError(f"activation {name}: an MLP without gate has {', '.join(_GELU)} or relu2 here")
    return {"gelu": _GELU[name]}


def write_activation(model: ModelConfig) -> str:
    """The name of the function that is really computed (CNV-03)."""
    return {"squared_relu": "relu2", "gelu_tanh": "gelu_new", "gelu_exact": "gelu"}[model.activation]


def different(model: ModelConfig, wanted: Mapping[str, object]) -> list[str]:
    """What is not as wanted, by field or property."""
    wanted = {"embed_layernorm": False, "rotary_interleaved": False, **wanted}
    return [
        f"{name} {getattr(model, name)}, not {value}" for name, value in wanted.items() if getattr(model, name) != value
    ]


def positions(model: ModelConfig) -> int:
    """Positions that the model may be used at."""
    return max(model.max_position_embeddings, model.seq_length)
