# SPDX-License-Identifier: Apache-2.0
import dataclasses
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint import write_foreign
from megatron_core.checkpoint.directory import read_manifest, step_directory
from megatron_core.checkpoint.foreign import ForeignModel, ForeignTensor
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import whole
from megatron_core.checkpoint.write_foreign import write_checkpoint
from megatron_core.config.run import RunConfig
from megatron_core.errors import CheckpointError
from megatron_core.training.state_json import seed_of, state_from_json

CONFIG = {"model": {"num_layers": 2}, "data": {"tokenizer_type": "ByteTokenizer"}}


def values() -> dict[str, torch.Tensor]:
    """Odd sizes of several dtypes, one larger than a checksum block."""
    torch.manual_seed(3)
    return {"half": torch.randn(7).half(), "big": torch.randn(3, 2**19), "bf": torch.randn(5, 3).bfloat16()}


def model(tensors: dict[str, torch.Tensor]) -> ForeignModel:
    return ForeignModel(
        config=CONFIG,
        tensors=[
            ForeignTensor(name=name, shape=tuple(t.shape), dtype=t.dtype, read=lambda t=t: t.clone())
            for name, t in tensors.items()
        ],
        origin="a test",
    )


def nothing(count: int) -> None:
    pass


def test_every_tensor_is_there_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_foreign, "_FILE_BYTES", 20)
    reported: list[int] = []
    foreign = model(values())
    write_checkpoint(foreign, tmp_path, step=7, report=reported.append)
    manifest = read_manifest(tmp_path, 7)
    assert [file.name for file in manifest.files] == [f"rank_0000{n}.safetensors" for n in range(3)]
    assert manifest.config == CONFIG and sum(reported) == 2 * foreign.nbytes
    with CheckpointReader(step_directory(tmp_path, 7), manifest) as reader:
        for name, tensor in values().items():
            read = reader.load_rectangle(f"model/{name}", whole(tensor.shape), tensor.dtype)
            assert torch.equal(read, tensor), name


def test_a_run_understands_the_state(tmp_path: Path) -> None:
    manifest = write_checkpoint(model(values()), tmp_path, step=7, report=nothing)
    state = state_from_json(manifest.state, RunConfig(), with_optim=False)
    assert (state.step, state.consumed_samples, seed_of(manifest.state)) == (7, 0, RunConfig().training.seed)


def test_nothing_is_left_of_what_fails(tmp_path: Path) -> None:
    def fail() -> torch.Tensor:
        raise CheckpointError("no such bytes")

    good = model(values())
    broken = ForeignTensor(name="z", shape=(2,), dtype=torch.float16, read=fail)
    with pytest.raises(CheckpointError, match="no such bytes"):
        write_checkpoint(dataclasses.replace(good, tensors=[*good.tensors, broken]), tmp_path / "out", report=nothing)
    assert list((tmp_path / "out").iterdir()) == []


def test_what_the_check_refuses_is_not_published(tmp_path: Path) -> None:
    def refuse(directory: Path, manifest: object) -> None:
        assert sorted(path.name for path in directory.iterdir()) == ["rank_00000.safetensors"]
        raise CheckpointError("other logits")

    with pytest.raises(CheckpointError, match="other logits"):
        write_checkpoint(model(values()), tmp_path, report=nothing, check=refuse)
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_is_there_stays(tmp_path: Path) -> None:
    write_checkpoint(model(values()), tmp_path, report=nothing)
    before = (step_directory(tmp_path, 0) / "manifest.json").read_bytes()
    with pytest.raises(CheckpointError, match="is there already: give another --output"):
        write_checkpoint(model(values()), tmp_path, report=nothing)
    assert (step_directory(tmp_path, 0) / "manifest.json").read_bytes() == before


def test_a_tensor_that_is_not_what_was_said_is_a_bug(tmp_path: Path) -> None:
    lying = ForeignTensor(name="w", shape=(2,), dtype=torch.float32, read=lambda: torch.zeros(3))
    with pytest.raises(AssertionError, match=r"w: read as torch.float32 \(3,\)"):
        write_checkpoint(ForeignModel(config={}, tensors=[lying], origin="x"), tmp_path, report=nothing)
