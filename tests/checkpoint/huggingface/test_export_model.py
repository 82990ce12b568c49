# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.huggingface import export_model as module
from megatron_core.checkpoint.huggingface.export_model import export_bytes, export_model
from megatron_core.checkpoint.huggingface.family import Family
from megatron_core.checkpoint.huggingface.import_model import import_model, read_architecture
from megatron_core.checkpoint.huggingface.weight_files import INDEX
from megatron_core.checkpoint.stored_model import StoredModel
from megatron_core.config.data import DataConfig
from megatron_core.errors import CheckpointError, ConfigError, DataError
from tests.checkpoint.huggingface.small_models import LLAMA, TIED, tensors_of, write
from tests.inference.saved_model import save
from tests.small_model import small


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A checkpoint of the small Llama."""
    source = write(tmp_path / "hf", LLAMA)
    import_model(source, tmp_path / "run", read_architecture(source), report=lambda n: None)
    return tmp_path / "run"


def export(run: Path, output: Path, dtype: torch.dtype | None = None, **options: Any) -> Family:
    with StoredModel(run, dtype) as stored:
        return export_model(stored, output, **{"report": lambda n: None} | options)


def test_all_files_of_a_model(run: Path, tmp_path: Path) -> None:
    reported: list[int] = []
    assert export(run, tmp_path / "out", report=reported.append).name == "llama"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["architectures"], config["torch_dtype"]) == (["LlamaForCausalLM"], "float32")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == tensors_of(LLAMA).keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in tensors_of(LLAMA).items())
    with StoredModel(run) as stored:
        assert sum(reported) == export_bytes(stored) == sum(tensor.nbytes for tensor in written.values())


def test_several_files_and_another_dtype(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FILE_BYTES", 10_000)
    export(run, tmp_path / "out", torch.bfloat16, family="mistral")
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    expected = tensors_of(LLAMA)
    assert index["weight_map"].keys() == expected.keys()
    assert index["metadata"]["total_size"] == 2 * sum(tensor.numel() for tensor in expected.values())
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert files == sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    for name, tensor in expected.items():
        found = load_file(tmp_path / "out" / index["weight_map"][name])[name]
        assert torch.equal(found, tensor.bfloat16())
    assert read_architecture(tmp_path / "out").model == read_architecture(tmp_path / "hf").model


def test_it_has_its_name_only_when_it_is_whole_and_checked(run: Path, tmp_path: Path) -> None:
    seen = []

    def refuse(folder: Path) -> None:
        seen.append((folder.name, (folder / "config.json").exists(), (tmp_path / "out").exists()))
        raise CheckpointError("other logits")

    with pytest.raises(CheckpointError, match="other logits"):
        export(run, tmp_path / "out", check=refuse)
    assert seen == [("out.unfinished", True, False)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "run"]


def test_the_rest_of_a_killed_export_is_in_nobodys_way(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out.unfinished").mkdir()
    (tmp_path / "out.unfinished" / "model-00007-of-00009.safetensors").write_bytes(b"half")
    export(run, tmp_path / "out")
    assert not (tmp_path / "out.unfinished").exists() and len(list((tmp_path / "out").iterdir())) == 3


def test_what_is_there_stays(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"hf is there already: give another --output"):
        export(run, tmp_path / "hf")
    (tmp_path / "empty").mkdir()
    export(run, tmp_path / "empty")


def test_models_that_no_family_has(tmp_path: Path) -> None:
    step = save(tmp_path / "run", small(embed_layernorm=True))
    with pytest.raises(ConfigError, match="gpt2: embed_layernorm True, not False"):
        export(step, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ({"num_layers": 3}, "holds no weight layers.2.attention_norm.weight"),
        ({"num_layers": 1}, "weights have no place in a gpt2 of this config: layers.1."),
        ({"ffn_hidden_size": 96}, r"layers.0.mlp.up.weight has shape \(128, 32\), but the config makes it \(96, 32\)"),
    ],
)
def test_a_config_that_is_not_that_of_the_weights(tmp_path: Path, says: dict[str, Any], message: str) -> None:
    step = save(tmp_path / "run", TIED, says=small(**says))
    with pytest.raises(CheckpointError, match=message):
        export(step, tmp_path / "out")


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ({"num_layers": 10**12}, "says 1000000000000 layers, but holds 32 weights"),
        ({"num_attention_heads": 0}, "--num-attention-heads is required"),
        ({"seq_length": 99}, "--max-position-embeddings 16 is less than --seq-length 99"),
    ],
)
def test_a_config_that_makes_no_sense(tmp_path: Path, says: dict[str, Any], message: str) -> None:
    step = save(tmp_path / "run", TIED, says=small(**says))
    with pytest.raises(ConfigError, match=message):
        export(step, tmp_path / "out")


def test_damage_is_found(run: Path, tmp_path: Path) -> None:
    path = next(step_directory(run, 0).glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.unfinished").exists()


def test_a_tokenizer_that_has_moved(tmp_path: Path) -> None:
    gone = DataConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(tmp_path / "gone"))
    step = save(tmp_path / "run", TIED, gone)
    with pytest.raises(DataError, match="no such file"):
        export(step, tmp_path / "out")
