# SPDX-License-Identifier: Apache-2.0
"""Small models of transformers with random weights, saved as it saves them, and their logits."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

GPT2: dict[str, Any] = {"n_layer": 2, "n_embd": 48, "n_head": 4, "n_positions": 32, "vocab_size": 61, "n_inner": 80}
NEOX: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 80,
    "max_position_embeddings": 32, "vocab_size": 61,
}  # fmt: skip
HALF = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
LLAMA: dict[str, Any] = {**NEOX, "num_attention_heads": 6, "num_key_value_heads": 2}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2-tied": ("gpt2", GPT2),
    "gpt2-untied-exact": ("gpt2", GPT2 | {"tie_word_embeddings": False, "activation_function": "gelu"}),
    "pythia": ("gpt_neox", NEOX | HALF),
    "neox-serial-tied": ("gpt_neox", NEOX | HALF | {"use_parallel_residual": False, "tie_word_embeddings": True}),
    "llama": ("llama", LLAMA | {"rms_norm_eps": 1e-5}),
    "llama3-tied-biased": ("llama", LLAMA | {
        "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3,
    }),
    "llama-linear-wide-heads": ("llama", LLAMA | {
        "head_dim": 12, "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    }),
    "mistral-window": ("mistral", LLAMA | {"sliding_window": 20, "head_dim": 16}),
    "qwen2-tied": ("qwen2", LLAMA | {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", LLAMA | {"head_dim": 16}),
}  # fmt: skip
"""Name -> model_type and its config: grouped queries, an odd vocabulary, tied and untied, biases."""

PROMPTS = ([7], [3, 60], [1, 2, 3, 5, 8, 13, 21], [k * k % 61 for k in range(19)])
"""Of several lengths, within the shortest window."""


def randomize(model: PreTrainedModel, scale: float = 0.3) -> PreTrainedModel:
    """Give every parameter, biases and norms too, numbers that show in the logits."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * scale
        parameter.data.copy_(1 + noise if "norm" in name and name.endswith("weight") and noise.ndim == 1 else noise)
    return model.eval()


def save(folder: Path, kind: str, config: dict[str, Any], **changes: Any) -> PreTrainedModel:
    """A random model in `folder`; `changes` are keys of its config.json that are set afterwards (None: taken out)."""
    torch.manual_seed(1)
    model = randomize(AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config)))
    model.save_pretrained(folder)
    change_config(folder, **changes)
    return model


def change_config(folder: Path, **changes: Any) -> None:
    """Set keys of a config.json; None takes one out."""
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def load(folder: Path) -> PreTrainedModel:
    """As a user would, in fp32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()


@contextmanager
def few_threads() -> Iterator[None]:
    """One thread: on small matrices several wait for each other, by the thousand times longer on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def logits_of(model: PreTrainedModel, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[torch.Tensor]:
    """transformers' logits [s, v] of each prompt."""
    with torch.inference_mode(), few_threads():
        return [model(torch.tensor([list(prompt)])).logits[0].float() for prompt in prompts]
