# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from megatron_core.checkpoint.directory import read_manifest
from megatron_core.checkpoint.huggingface.import_model import import_bytes, import_model, read_architecture
from megatron_core.checkpoint.huggingface.weight_files import SINGLE
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.stored_model import StoredModel
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError
from tests.checkpoint.huggingface.small_models import LLAMA, TIED, tensors_of, write
from tests.data.tokenizer_files import byte_level_bpe


def convert(source: Path, run: Path, **options: Any) -> Manifest:
    return import_model(source, run, read_architecture(source), **{"report": lambda n: None} | options)


def test_weights_are_theirs_where_ours_belong(tmp_path: Path) -> None:
    source = write(tmp_path / "hf", LLAMA)
    reported: list[int] = []
    convert(source, tmp_path / "run", report=reported.append)
    theirs = tensors_of(LLAMA)
    assert (
        sum(reported)
        == import_bytes(source, read_architecture(source))
        == 2 * 4 * sum(tensor.numel() for tensor in theirs.values())
    )
    with StoredModel(tmp_path / "run") as stored:
        kv = stored.read("layers.1.attention.kv.weight")
        assert torch.equal(kv[:, 1].reshape(16, 32), theirs["model.layers.1.self_attn.v_proj.weight"])
        assert torch.equal(stored.read("head.weight"), theirs["lm_head.weight"])
        assert (stored.model.vocab_size, stored.model.query_groups, stored.data.tokenizer_type) == (
            37,
            2,
            "NullTokenizer",
        )


def test_dtypes_are_kept_or_cast(tmp_path: Path) -> None:
    write(tmp_path / "hf", LLAMA, tensors_of(LLAMA, torch.bfloat16))
    kept, cast = convert(tmp_path / "hf", tmp_path / "a"), convert(tmp_path / "hf", tmp_path / "b", dtype=torch.float32)
    assert {entry.dtype for entry in kept.tensors} == {"bfloat16"}
    assert {entry.dtype for entry in cast.tensors} == {"float32"}
    with StoredModel(tmp_path / "a") as a, StoredModel(tmp_path / "b") as b:
        for name in a.names:
            assert torch.equal(a.read(name).float(), b.read(name))


def test_names_without_the_models_own_prefix_and_buffers_of_old_files(tmp_path: Path) -> None:
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors_of(TIED).items()}
    tensors |= {"h.0.attn.bias": torch.ones(1, 1, 16, 16), "h.1.attn.masked_bias": torch.tensor(-1e4)}
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    convert(write(tmp_path / "hf", TIED, tensors), tmp_path / "run")
    with StoredModel(tmp_path / "run") as stored:
        assert torch.equal(stored.read("embedding.tokens.weight"), tensors["wte.weight"])
        assert "head.weight" not in stored.names


def missing(name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in tensors_of(LLAMA).items() if key != name}


def plus(model: ModelConfig, name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    return tensors_of(model) | {name: tensor}


@pytest.mark.parametrize(
    ("model", "tensors", "message"),
    [
        (LLAMA, missing("lm_head.weight"), r"hold no lm_head\.weight; the config says that it is not tied"),
        (LLAMA, missing("model.norm.weight"), r"the weights hold no model\.norm\.weight"),
        (LLAMA, plus(LLAMA, "model.norm.bias", torch.ones(2)), r"1 tensors have no place in a llama .*norm\.bias"),
        (LLAMA, plus(LLAMA, "model.norm.weight", torch.ones(31)), r"has shape \(31,\), but the config .*\(32,\)"),
        (LLAMA, plus(LLAMA, "model.norm.weight", torch.ones(32).int()), "is torch.int32: weights are floats"),
        (TIED, plus(TIED, "lm_head.weight", torch.ones(37, 32)), r"lm_head\.weight is not transformer\.wte"),
        (TIED, plus(TIED, "lm_head.weight", torch.ones(36, 32)), r"lm_head\.weight is not transformer\.wte"),
    ],
    ids=["head", "norm", "more", "shape", "integers", "tied-other", "tied-shape"],
)  # fmt: skip
def test_weights_that_are_not_the_configs(
    tmp_path: Path, model: ModelConfig, tensors: dict[str, torch.Tensor], message: str
) -> None:
    source = write(tmp_path / "hf", model, tensors)
    with pytest.raises(CheckpointError, match=message):
        convert(source, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_layers_without_end(tmp_path: Path) -> None:
    source = write(tmp_path / "hf", LLAMA, num_hidden_layers=10**12)
    with pytest.raises(CheckpointError, match="the config says 1000000000000 layers, but there are 21 tensors"):
        convert(source, tmp_path / "run")


def test_a_tokenizer_travels_along(tmp_path: Path) -> None:
    source = write(tmp_path / "hf", LLAMA)
    byte_level_bpe(["<|endoftext|>"]).save(str(source / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="ids, but the model 37"):
        convert(source, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_there_stays(tmp_path: Path) -> None:
    source = write(tmp_path / "hf", LLAMA)
    convert(source, tmp_path / "run")
    before = read_manifest(tmp_path / "run", 0)
    with pytest.raises(CheckpointError, match="holds checkpoints already: give another --output"):
        convert(source, tmp_path / "run")
    assert read_manifest(tmp_path / "run", 0) == before


def test_what_the_check_refuses_leaves_nothing(tmp_path: Path) -> None:
    def refuse(step: Path, manifest: Manifest) -> None:
        raise CheckpointError("other logits")

    with pytest.raises(CheckpointError, match="other logits"):
        convert(write(tmp_path / "hf", LLAMA), tmp_path / "run", check=refuse)
    assert not (tmp_path / "run").exists()


def test_a_config_is_understood_or_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "hf", LLAMA, num_attention_heads=5, head_dim=8)
    with pytest.raises(CheckpointError, match=r"config\.json: .* --num-attention-heads 5 is not a multiple of"):
        read_architecture(source)
    with pytest.raises(CheckpointError, match=r"attn_logit_softcapping 50\.0: not understood"):
        read_architecture(write(tmp_path / "b", LLAMA, attn_logit_softcapping=50.0))
    with pytest.raises(CheckpointError, match="model_type 'mamba' is not read here"):
        read_architecture(write(tmp_path / "c", LLAMA, model_type="mamba"))


def test_samples_may_be_shorter_than_the_model(tmp_path: Path) -> None:
    source = write(tmp_path / "hf", LLAMA)
    found = read_architecture(source, 8)
    assert (found.model.seq_length, found.model.max_position_embeddings, found.notes) == (8, 16, ())
    with pytest.raises(CheckpointError, match="--seq-length 17 is more than the model's 16 positions"):
        read_architecture(source, 17)


def test_a_window_is_said(tmp_path: Path) -> None:
    source = write(tmp_path / "hf", LLAMA, model_type="mistral", sliding_window=10)
    found = read_architecture(source)
    assert found.notes == (
        "16 positions there with a window of 10: 10 positions here, within which attention is the same",
    )


def test_damage_is_found_before_anything_is_published(tmp_path: Path) -> None:
    source = write(tmp_path / "hf", LLAMA)
    architecture = read_architecture(source)
    save_file({"a": torch.ones(2), "b": torch.ones(2)}, source / SINGLE)
    with pytest.raises(CheckpointError, match=r"the weights hold no model\.embed_tokens"):
        import_model(source, tmp_path / "run", architecture, report=lambda n: None)
