# SPDX-License-Identifier: Apache-2.0
import argparse
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_core.checkpoint.megatron.torch_file import open_torch_file
from megatron_core.errors import CheckpointError


class Command:
    """Pickles as a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def saved() -> dict[str, Any]:
    torch.manual_seed(1)
    base = torch.randn(6, 8)
    return {
        "base": base,
        "part": base[2:4, 1:5],
        "turned": base.t(),
        "parameter": torch.nn.Parameter(base.bfloat16()),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4),
        "state": torch.nn.Linear(3, 2).half().state_dict(),
        "args": argparse.Namespace(a=1),
    }


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("before", [b"", b"some bytes before"])
def test_all_tensors_of_both_forms(tmp_path: Path, zipped: bool, before: bytes) -> None:
    original = saved()
    buffer = io.BytesIO()
    torch.save(original, buffer, _use_new_zipfile_serialization=zipped)
    path = tmp_path / "file.pt"
    path.write_bytes(before + buffer.getvalue() + b"after" * len(before))
    opened = open_torch_file(path, len(before), len(buffer.getvalue()))
    assert opened.inert == frozenset() and opened.value["args"].fields == {"a": 1}
    for name in ("base", "part", "turned", "parameter", "scalar", "empty"):
        read = opened.value[name].read()
        assert read.dtype == original[name].dtype and torch.equal(read, original[name].data), name
    for name, tensor in original["state"].items():
        assert torch.equal(opened.value["state"][name].read(), tensor)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_command_is_named_and_not_run(tmp_path: Path, zipped: bool) -> None:
    victim = tmp_path / "victim"
    path = tmp_path / "file.pt"
    hostile = {"args": argparse.Namespace(x=Command(f"touch {victim}")), "weight": torch.ones(3)}
    torch.save(hostile, path, _use_new_zipfile_serialization=zipped)
    opened = open_torch_file(path)
    assert opened.inert == {f"{os.system.__module__}.system"} and not victim.exists()
    assert torch.equal(opened.value["weight"].read(), torch.ones(3))


@pytest.mark.parametrize("zipped", [True, False])
def test_every_truncation_is_one_error(tmp_path: Path, zipped: bool) -> None:
    buffer = io.BytesIO()
    torch.save(saved(), buffer, _use_new_zipfile_serialization=zipped)
    data = buffer.getvalue()
    path = tmp_path / "file.pt"
    for stop in range(0, len(data) - 1, 41):
        path.write_bytes(data[:stop])
        with pytest.raises(CheckpointError) as caught:
            open_torch_file(path)
        assert "\n" not in str(caught.value)


def repacked(path: Path, **changes: Any) -> None:
    """Write the archive again, with the content of some members changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    compression = changes.pop("compression", zipfile.ZIP_STORED)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            change = changes.get(name.rpartition("/")[2].replace(".", "_"), lambda data: data)
            if (changed := change(data)) is not None:
                archive.writestr(name, changed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"byteorder": lambda data: b"big"}, "another byte order"),
        ({"compression": zipfile.ZIP_DEFLATED}, "compressed or encrypted"),
        ({"data_pkl": lambda data: None}, "no data.pkl"),
        ({"0": lambda data: None}, "a storage that the archive lacks"),
        ({"0": lambda data: data[:-4]}, "a storage of 48 elements in 188 bytes"),
        ({"data_pkl": lambda data: data.replace(b"K0", b"J\xff\xff\xff\x7f", 1)}, "a storage of 2147483647 elements"),
        ({"data_pkl": lambda data: data.replace(b"FloatStorage", b"FlOatStorage")}, "a storage of type"),
        ({"data_pkl": lambda data: data.replace(b"storage", b"stOrage")}, "a persistent id that is no storage"),
    ],
)
def test_archives_that_torch_would_not_write(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "file.pt"
    torch.save(torch.randn(6, 8), path)
    repacked(path)
    assert open_torch_file(path).value.shape == (6, 8)
    repacked(path, **changes)
    with pytest.raises(CheckpointError, match=message):
        open_torch_file(path)


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(CheckpointError, match="cannot read"):
        open_torch_file(path)
    for data in (b"hello, world", b"PK\x03\x04 and no archive", b"\x80\x02K\x01."):
        path.write_bytes(data)
        with pytest.raises(CheckpointError):
            open_torch_file(path)
