# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint.directory import read_manifest
from megatron_core.checkpoint.megatron.legacy_read import open_legacy
from megatron_core.errors import CheckpointError
from tests.checkpoint.megatron.stored import save_weights
from tests.checkpoint.megatron.test_import_model import LLAMA
from tests.checkpoint.megatron.trees import weights, write_legacy
from tools.verify_megatron import require_same_logits

WEIGHTS = {name: values / 4 for name, values in weights(LLAMA).items()}


def test_the_same_model_and_its_rounding(tmp_path: Path) -> None:
    step = save_weights(tmp_path, WEIGHTS, LLAMA)
    manifest = read_manifest(tmp_path, 1000)
    same = open_legacy(write_legacy(tmp_path / "same", WEIGHTS, LLAMA, tp=2))
    assert require_same_logits(step, manifest, same).startswith("logits of 4 prompts differ from those over Megatron's")
    half = {name: values.bfloat16() for name, values in WEIGHTS.items()}
    rounded = open_legacy(write_legacy(tmp_path / "rounded", half, LLAMA))
    require_same_logits(step, manifest, rounded, torch.bfloat16)
    with pytest.raises(CheckpointError, match="one does not compute what the other does; nothing was written"):
        require_same_logits(step, manifest, rounded)


@pytest.mark.parametrize(
    "change",
    [
        ("layers.0.attention.kv.weight", lambda t: t.flip(1)),
        ("layers.1.attention.q.weight", lambda t: t.flip(0)),
        ("layers.1.mlp.up.weight", lambda t: t.flip(0)),
        ("layers.2.attention.k_norm.weight", lambda t: t * 1.001),
        ("final_norm.weight", lambda t: t * float("nan")),
    ],
    ids=lambda change: change[0],
)
def test_what_conversions_get_wrong(tmp_path: Path, change: tuple) -> None:
    name, wrong = change
    step = save_weights(tmp_path, WEIGHTS | {name: wrong(WEIGHTS[name])}, LLAMA)
    theirs = open_legacy(write_legacy(tmp_path / "save", WEIGHTS, LLAMA))
    with pytest.raises(CheckpointError, match="one does not compute what the other does"):
        require_same_logits(step, read_manifest(tmp_path, 1000), theirs)
