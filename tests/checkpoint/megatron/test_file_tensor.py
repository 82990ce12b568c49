# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint.megatron import file_tensor
from megatron_core.checkpoint.megatron.file_tensor import FileTensor
from megatron_core.errors import CheckpointError

VALUES = torch.arange(5 * 6 * 7, dtype=torch.int32).view(5, 6, 7)


@pytest.fixture
def stored(tmp_path: Path) -> FileTensor:
    path = tmp_path / "file"
    path.write_bytes(b"xyz" + VALUES.numpy().tobytes())
    return FileTensor(path=path, start=3, layout=torch.empty(VALUES.shape, dtype=torch.int32, device="meta"))


@pytest.mark.parametrize("scratch", [4, 100, 2**20])
def test_any_view_is_read_as_torch_would(stored: FileTensor, scratch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tensor, "_SCRATCH_BYTES", scratch)
    for take in (
        lambda t: t,
        lambda t: t[1:4, 2, 3:],
        lambda t: t.transpose(0, 2),
        lambda t: t.view(5, 3, 2, 7)[:, :, 1],
        lambda t: t[4, 5, 6],
        lambda t: t[:0],
        lambda t: t[2:3].expand(4, 6, 7),
        lambda t: t[:, ::2],
    ):
        view = stored.view(take)
        assert view.shape == take(VALUES).shape and torch.equal(view.read(), take(VALUES))


def test_it_fills_parts_of_what_is_there(stored: FileTensor) -> None:
    target = torch.zeros(6, 20, dtype=torch.float64)
    stored.view(lambda t: t[2]).fill(target[:, 3:10])
    assert torch.equal(target[:, 3:10], VALUES[2].double()) and not target[:, 10:].any()


def test_a_file_that_ends_too_early(stored: FileTensor) -> None:
    stored.path.write_bytes(stored.path.read_bytes()[:-1])
    assert torch.equal(stored.view(lambda t: t[:4]).read(), VALUES[:4])
    with pytest.raises(CheckpointError, match="1 bytes too early"):
        stored.read()
