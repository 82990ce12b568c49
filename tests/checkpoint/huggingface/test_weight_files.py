# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from megatron_core.checkpoint.huggingface.weight_files import INDEX, SINGLE, WeightFiles
from megatron_core.checkpoint.rectangle import Rectangle, whole
from megatron_core.errors import CheckpointError

W = torch.arange(24.0).view(4, 6)
B = torch.arange(5.0).bfloat16()


def read(directory: Path, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with WeightFiles(directory) as files:
        target = torch.empty(files.tensors[name].shape, dtype=dtype)
        files.fill(target, name, target.shape, whole(target.shape))
        return target


def test_one_file(tmp_path: Path) -> None:
    save_file({"w": W, "b": B}, tmp_path / SINGLE)
    assert torch.equal(read(tmp_path, "w"), W) and torch.equal(read(tmp_path, "b"), B.float())
    with WeightFiles(tmp_path) as files:
        assert (files.tensors["b"].dtype, files.tensors["w"].shape) == (torch.bfloat16, (4, 6))
        target = torch.zeros(3, 2, 2)  # a part, seen in other dims, into a view
        files.fill(target.permute(1, 2, 0), "w", (4, 2, 3), Rectangle((1, 0, 0), (3, 2, 3)))
        assert torch.equal(target.permute(1, 2, 0), W.view(4, 2, 3)[1:3])


def test_shards_behind_links(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "model").mkdir()
    for name, tensors in (("one", {"w": W, "unlisted": B}), ("two", {"b": B})):
        save_file(tensors, tmp_path / "blobs" / name)
        (tmp_path / "model" / f"{name}.safetensors").symlink_to(tmp_path / "blobs" / name)
    index = {"weight_map": {"w": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model" / INDEX).write_text(json.dumps(index))
    with WeightFiles(tmp_path / "model") as files:
        assert files.tensors.keys() == {"w", "b"}
    assert torch.equal(read(tmp_path / "model", "w"), W)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"w": "../x.safetensors"}, "no name of a .safetensors file beside it"),
        ({"w": "x.bin"}, "no name of a .safetensors file beside it"),
        ({"w": 3}, "no name of a .safetensors file beside it"),
        ({}, "weight_map is an object, not an object of names"),
        ({"gone": SINGLE}, f"has no gone, which {INDEX} says is there"),
        ({"w": "gone.safetensors"}, "cannot read .*gone.safetensors: No such file"),
    ],
)
def test_an_index_that_is_not_right(tmp_path: Path, weight_map: Any, message: str) -> None:
    save_file({"w": W}, tmp_path / SINGLE)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=message):
        WeightFiles(tmp_path)


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / SINGLE).symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(tmp_path / SINGLE)
    with pytest.raises(CheckpointError):
        WeightFiles(tmp_path)


def test_no_pickle_is_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds neither model\.safetensors nor"):
        WeightFiles(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"holds pytorch_model\.bin, but no safetensors: a pickle can"):
        WeightFiles(tmp_path)
    with pytest.raises(CheckpointError, match="gone is no directory"):
        WeightFiles(tmp_path / "gone")


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"no json", "its header is no JSON object"),
        (b"[1, 2]", "its header is no JSON object"),
        (entry(data_offsets=[0, 80]), "entry for 'w' is not right"),
        (entry(data_offsets=[8, 0]), "entry for 'w' is not right"),
        (entry(data_offsets=[-8, 0]), "entry for 'w' is not right"),
        (entry(shape=[-2]), "entry for 'w' is not right"),
        (entry(shape=[True]), "entry for 'w' is not right"),
        (entry(shape=5), "entry for 'w' is not right"),
        (entry(shape=[10**12]), "F32 .* in 8 bytes"),
        ({"w": None}, "entry for 'w' is not right"),
    ],
)
def test_headers_that_are_not_right(tmp_path: Path, header: Any, message: str) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (tmp_path / SINGLE).write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(CheckpointError, match=message):
        WeightFiles(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends at byte 0"),
        (b"\xff" * 8, "not a safetensors file: a header of"),
        (b"\x09" + bytes(7), "a header of 9 bytes in a file of 8"),
    ],
)
def test_files_that_are_too_short(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / SINGLE).write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        WeightFiles(tmp_path)


def test_quantised_weights_are_named(tmp_path: Path) -> None:
    text = json.dumps(entry(dtype="F8_E4M3", data_offsets=[0, 2])).encode()
    (tmp_path / SINGLE).write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with WeightFiles(tmp_path) as files, pytest.raises(CheckpointError, match="dtype 'F8_E4M3': weights are "):
        _ = files.tensors["w"].dtype
