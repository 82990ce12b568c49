# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_core.checkpoint.directory import read_manifest, step_directory
from megatron_core.checkpoint.huggingface.import_model import import_model, read_architecture
from megatron_core.errors import CheckpointError
from tests.checkpoint.huggingface.random_models import GPT2, LLAMA, change_config, few_threads, save
from tools.verify_logits import Compared, can_verify, compare_logits, require_same_logits


@pytest.fixture(autouse=True)
def _few_threads() -> Iterator[None]:
    with few_threads():
        yield


def converted(tmp_path: Path, kind: str, config: dict[str, Any], dtype: torch.dtype | None = None) -> Path:
    save(tmp_path / "hf", kind, config)
    architecture = read_architecture(tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "run", architecture, dtype=dtype, report=lambda n: None)
    return step_directory(tmp_path / "run", 0)


def test_the_same_model_agrees(tmp_path: Path) -> None:
    step = converted(tmp_path, "llama", LLAMA)
    found = require_same_logits(step, read_manifest(tmp_path / "run", 0), tmp_path / "hf")
    assert found.prompts == 4 and found.largest > 1  # as long as the model's 32 positions allow
    assert "logits of 4 prompts differ from transformers' by at most" in str(found)


@pytest.mark.parametrize(
    ("kind", "config", "changes"),
    [
        ("gpt2", GPT2, {"activation_function": "gelu"}),
        ("llama", LLAMA, {"rms_norm_eps": 1e-2}),
        ("llama", LLAMA, {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    ],
    ids=["gelu", "epsilon", "base"],
)
def test_a_small_difference_in_the_config_is_refused(
    tmp_path: Path, kind: str, config: dict[str, Any], changes: dict[str, Any]
) -> None:
    step = converted(tmp_path, kind, config)
    change_config(tmp_path / "hf", **changes)
    with pytest.raises(CheckpointError, match="so one does not compute what the other does; nothing was written"):
        require_same_logits(step, read_manifest(tmp_path / "run", 0), tmp_path / "hf")


def test_a_cast_is_no_difference(tmp_path: Path) -> None:
    step = converted(tmp_path, "llama", LLAMA, torch.bfloat16)
    found = compare_logits(step, read_manifest(tmp_path / "run", 0), tmp_path / "hf", torch.bfloat16)
    assert found.agrees and found.difference < 1e-4


def test_what_is_no_number_agrees_with_nothing() -> None:
    assert Compared(1e-6, 1.0, 1).agrees and not Compared(1e-4, 1.0, 1).agrees
    assert not Compared(float("nan"), 1.0, 1).agrees and not Compared(0.0, float("nan"), 1).agrees


def test_what_transformers_cannot_load(tmp_path: Path) -> None:
    step = converted(tmp_path, "llama", LLAMA)
    assert can_verify()
    (tmp_path / "hf" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"transformers cannot load .*hf: "):
        require_same_logits(step, read_manifest(tmp_path / "run", 0), tmp_path / "hf")
