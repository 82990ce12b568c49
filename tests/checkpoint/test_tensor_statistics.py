# SPDX-License-Identifier: Apache-2.0
import math
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint import stream as stream_module
from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import whole
from megatron_core.checkpoint.tensor_statistics import TensorStatistics, tensor_statistics
from megatron_core.checkpoint.writer import Shard
from tests.checkpoint import small_checkpoint


def statistics_of(root: Path, values: torch.Tensor) -> TensorStatistics:
    shard = Shard(name="x", shape=tuple(values.shape), rectangle=whole(values.shape), values=values)
    manifest = small_checkpoint.save(root, parts=[[shard]])
    with CheckpointReader(step_directory(root, 3), manifest) as reader:
        return tensor_statistics(reader, manifest.tensors[0])


@pytest.mark.parametrize("part_bytes", [40, 2**24])
def test_against_torch_in_one_part_and_in_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(stream_module, "PART_BYTES", part_bytes)
    torch.manual_seed(0)
    values = torch.randn(7, 9) * 3 + 100
    values[2, 3] = 0
    found, wide = statistics_of(tmp_path, values), values.double()
    assert (found.elements, found.zeros, found.nans, found.infinities) == (63, 1, 0, 0)
    assert (found.least, found.largest) == (0.0, float(values.max()))
    assert found.mean == pytest.approx(float(wide.mean()), rel=1e-13)
    assert found.std == pytest.approx(float(wide.std(correction=0)), rel=1e-13)
    assert found.norm == pytest.approx(float(wide.norm()), rel=1e-13)
    assert found.first_values == tuple(wide[0, :6].tolist())


def test_what_is_not_finite_is_counted_and_left_out(tmp_path: Path) -> None:
    found = statistics_of(tmp_path, torch.tensor([1.0, math.nan, math.inf, -math.inf, 3.0], dtype=torch.bfloat16))
    assert (found.elements, found.nans, found.infinities) == (5, 1, 2)
    assert (found.least, found.largest, found.mean, found.std) == (1.0, 3.0, 2.0, 1.0)
    assert math.isnan(found.first_values[1]) and found.first_values[4] == 3.0


def test_nothing_finite(tmp_path: Path) -> None:
    found = statistics_of(tmp_path, torch.tensor([math.nan]))
    assert all(math.isnan(value) for value in (found.least, found.largest, found.mean, found.std, found.norm))


def test_scalars_and_masks(tmp_path: Path) -> None:
    assert statistics_of(tmp_path / "a", torch.tensor(2.5)).first_values == (2.5,)
    mask = statistics_of(tmp_path / "b", torch.tensor([True, False, True]))
    assert (mask.zeros, mask.largest, mask.mean) == (1, 1.0, pytest.approx(2 / 3))
