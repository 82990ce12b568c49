# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron_core.config.data import DataConfig
from megatron_core.config.model import ModelConfig
from megatron_core.data.byte_tokenizer import ByteTokenizer
from megatron_core.data.null_tokenizer import NullTokenizer
from megatron_core.errors import CheckpointError, ConfigError, DataError
from megatron_core.inference.logits import logits
from megatron_core.inference.open_model import open_model
from megatron_core.parallel.context import ParallelContext
from tests.inference.saved_model import GPT2, MODELS, in_place, save
from tests.rank_pool import ranks
from tests.small_model import ALONE

TOKENS = torch.randint(37, (2, 6), generator=torch.Generator().manual_seed(3))


def opened(ctx: ParallelContext, path: str, name: str) -> None:
    found = open_model(Path(path), ctx)
    torch.testing.assert_close(
        logits(found.model, TOKENS), logits(in_place(MODELS[name]), TOKENS), rtol=1e-10, atol=1e-12
    )
    assert found.manifest.step == 7 and found.model.config.vocabulary == 37


CHECK_LAYOUTS = ranks({"tp": 2}, {"pp": 2}, {"pp": 3}, {"tp": 4})(opened)


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_at_any_layout(tmp_path: Path, name: str) -> None:
    """pp 3 does not divide the layers, tp 4 is more than the groups of the second model."""
    path = save(tmp_path, MODELS[name])
    opened(ALONE, str(path), name)
    opened(ALONE, str(tmp_path), name)
    for layout in ({"tp": 2}, {"pp": 2}, {"pp": 3}, {"tp": 4}):
        CHECK_LAYOUTS(layout, path=str(path), name=name)


def test_dtype_as_stored_or_as_asked_for(tmp_path: Path) -> None:
    path = save(tmp_path, GPT2, dtype=torch.bfloat16)
    assert open_model(path, ALONE).model.dtype == torch.bfloat16
    wide = open_model(path, ALONE, dtype=torch.float32).model
    assert {p.dtype for p in wide.chunks[0].parameters()} == {torch.float32}


def test_tokenizer_of_the_manifest(tmp_path: Path) -> None:
    path = save(tmp_path / "null", GPT2)
    tokenizer = open_model(path, ALONE).tokenizer
    assert isinstance(tokenizer, NullTokenizer) and tokenizer.eod == 36
    larger = replace(GPT2, vocab_size=260)
    path = save(tmp_path / "bytes", larger, DataConfig(tokenizer_type="ByteTokenizer"))
    assert isinstance(open_model(path, ALONE).tokenizer, ByteTokenizer)
    path = save(tmp_path / "small", GPT2, DataConfig(tokenizer_type="ByteTokenizer"))
    with pytest.raises(DataError, match=r"^the ByteTokenizer has 257 ids, the checkpoint's model 37: this is not"):
        _ = open_model(path, ALONE).tokenizer
    gone = DataConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model="/nowhere")
    found = open_model(save(tmp_path / "gone", GPT2, gone), ALONE)
    assert logits(found.model, TOKENS).shape == (2, 6, 37)  # whoever needs no text needs no tokenizer
    with pytest.raises(DataError, match=r"^/nowhere: no such file"):
        _ = found.tokenizer
    moved = open_model(tmp_path / "gone", ALONE, tokenizer_model="/elsewhere")
    with pytest.raises(DataError, match=r"^/elsewhere: no such file"):
        _ = moved.tokenizer
    megatron = DataConfig(vocab_file="/a/vocab.json", merge_file="/a/merges.txt")
    found = open_model(save(tmp_path / "megatron", GPT2, megatron), ALONE, tokenizer_model="/elsewhere")
    with pytest.raises(DataError, match=r"^/elsewhere: no such file"):
        _ = found.tokenizer
    with pytest.raises(ConfigError, match=r"^--tokenizer-model /x: the checkpoint's NullTokenizer has no files"):
        open_model(tmp_path / "null", ALONE, tokenizer_model="/x")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"num_layers": 10**9}, "step 7 says 1000000000 layers but holds 60 tensors"),
        ({"num_layers": 3}, r"does not fit this run: 14 tensors differ"),
        (
            {"ffn_hidden_size": 10**12},
            r"model/layers.0.mlp.up.weight: shape \(128, 32\) in the checkpoint, \(10+, 32\)",
        ),
        ({"normalization": "RMSNorm"}, r"attention_norm.bias: in the checkpoint, with shape \(32,\), but not"),
    ],
)
def test_a_config_that_the_tensors_belie(tmp_path: Path, said: dict[str, object], message: str) -> None:
    """It is refused before any memory is taken."""
    path = save(tmp_path, GPT2, says=replace(GPT2, **said))
    with pytest.raises(CheckpointError, match=message):
        open_model(path, ALONE)


def test_a_config_without_sense(tmp_path: Path) -> None:
    says: ModelConfig = replace(GPT2, num_attention_heads=5, norm_epsilon=-1.0)
    path = save(tmp_path, GPT2, says=says)
    with pytest.raises(ConfigError) as caught:
        open_model(path, ALONE)
    assert str(caught.value) == (
        "the checkpoint of step 7 at tp 1 x pp 1: --norm-epsilon is -1.0; it must be > 0; --hidden-size 32 is not a "
        "multiple of --num-attention-heads 5: change one, or set the heads' width with --kv-channels"
    )


@ranks({"tp": 3})
def test_a_layout_that_does_not_fit(ctx: ParallelContext, path: str) -> None:
    with pytest.raises(ConfigError, match="--num-attention-heads 4 is not a multiple of"):
        open_model(Path(path), ctx)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(save(tmp_path, GPT2))


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no checkpoint$"):
        open_model(tmp_path / "nowhere", ALONE)
    with pytest.raises(CheckpointError, match="step_00000009 does not exist"):
        open_model(tmp_path / "step_00000009", ALONE)
