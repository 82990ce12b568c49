# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint.megatron import sharded
from megatron_core.checkpoint.megatron.file_tensor import FileTensor
from megatron_core.checkpoint.megatron.sharded import ShardedTensor
from megatron_core.checkpoint.rectangle import Rectangle, whole
from megatron_core.errors import CheckpointError

VALUES = torch.arange(24, dtype=torch.float32).view(6, 4)


def stored(path: Path, values: torch.Tensor) -> FileTensor:
    path.write_bytes(values.contiguous().numpy().tobytes())
    return FileTensor(path=path, start=0, layout=torch.empty(values.shape, dtype=values.dtype, device="meta"))


@pytest.fixture
def tensor(tmp_path: Path) -> ShardedTensor:
    cuts = [Rectangle((0, 0), (4, 3)), Rectangle((0, 3), (4, 4)), Rectangle((4, 0), (6, 4))]
    pieces = [(cut, stored(tmp_path / str(i), VALUES[cut.slices((0, 0))])) for i, cut in enumerate(cuts)]
    return ShardedTensor(name="w", shape=(6, 4), pieces=pieces, origin="here")


def test_any_rectangle_of_it(tensor: ShardedTensor) -> None:
    tensor.check()
    for rectangle in (whole((6, 4)), Rectangle((3, 2), (5, 4)), Rectangle((5, 0), (6, 1))):
        target = torch.empty(rectangle.shape, dtype=torch.float64)
        tensor.fill(target, rectangle)
        assert torch.equal(target, VALUES[rectangle.slices((0, 0))].double())


def test_pieces_must_make_it_up(tensor: ShardedTensor, tmp_path: Path) -> None:
    twice = [*tensor.pieces[:2], tensor.pieces[0]]
    half = (whole((6, 4)), stored(tmp_path / "half", VALUES.half()))
    beyond = (Rectangle((5, 0), (7, 4)), tensor.pieces[2][1])
    for pieces, message in (
        (tensor.pieces[:2], "has 16 elements in 2 pieces"),
        ([*twice, tensor.pieces[2]], "36 elements"),
        ([*tensor.pieces[:2], beyond], "do not make it up"),
        ([(whole((5, 4)), tensor.pieces[2][1])], r"has shape \(2, 4\), not \(5, 4\)"),
        ([*tensor.pieces, half], "float16 beside torch.float32"),
        ([(whole((6, 4)), stored(tmp_path / "int", VALUES.int()))], "int32"),
    ):
        with pytest.raises(CheckpointError, match=message):
            replace(tensor, pieces=pieces).check()


def test_copies_are_compared_to_the_bit(tensor: ShardedTensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "_COMPARED_BYTES", 32)  # two rows at a time
    other = VALUES.clone()
    copy = ShardedTensor(
        name="v", shape=(6, 4), pieces=[(whole((6, 4)), stored(tmp_path / "c", other))], origin="there"
    )
    both = replace(tensor, copies=[copy])
    both.check()
    both.require_equal_copies()
    other[5, 1] += 0.5
    stored(tmp_path / "c", other)
    with pytest.raises(CheckpointError, match=r"w is not the same in here and v in there: up to 0\.5 apart"):
        both.require_equal_copies()
    with pytest.raises(CheckpointError, match="do not make it up"):
        replace(both, copies=[replace(copy, pieces=[])]).check()
