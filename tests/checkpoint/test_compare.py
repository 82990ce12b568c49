# SPDX-License-Identifier: Apache-2.0
import math
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint import stream as stream_module
from megatron_core.checkpoint.compare import (
    TensorDifference,
    compare_tensor,
    field_differences,
    structural_differences,
)
from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import Rectangle, whole
from megatron_core.checkpoint.writer import Shard
from tests.checkpoint import small_checkpoint


def save(root: Path, **tensors: torch.Tensor) -> Manifest:
    shards = [
        Shard(name=name, shape=tuple(values.shape), rectangle=whole(values.shape), values=values)
        for name, values in tensors.items()
    ]
    return small_checkpoint.save(root, parts=[shards])


def compare(tmp_path: Path, a: torch.Tensor, b: torch.Tensor) -> TensorDifference:
    manifests = [save(tmp_path / name, x=values) for name, values in (("a", a), ("b", b))]
    with (
        CheckpointReader(step_directory(tmp_path / "a", 3), manifests[0]) as first,
        CheckpointReader(step_directory(tmp_path / "b", 3), manifests[1]) as second,
    ):
        return compare_tensor(first, second, manifests[0].tensors[0], manifests[1].tensors[0])


def test_equal_bits_whatever_the_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "PART_BYTES", 16)
    values = torch.randn(4, 6)
    values[0, 0], values[1, 1] = math.nan, math.inf
    parts = [
        Shard(name="x", shape=(4, 6), rectangle=Rectangle((0, a), (4, b)), values=values[:, a:b])
        for a, b in ((0, 2), (2, 6))
    ]
    cut = small_checkpoint.save(tmp_path / "cut", parts=[[parts[0]], [parts[1]]])
    one = save(tmp_path / "one", x=values)
    with (
        CheckpointReader(step_directory(tmp_path / "cut", 3), cut) as first,
        CheckpointReader(step_directory(tmp_path / "one", 3), one) as second,
    ):
        found = compare_tensor(first, second, cut.tensors[0], one.tensors[0])
    assert found == TensorDifference(name="x", elements=24, unequal=0, max_abs=0.0, max_rel=0.0)


def test_how_far_apart(tmp_path: Path) -> None:
    found = compare(tmp_path, torch.tensor([1.0, 2.0, -4.0]), torch.tensor([1.0, 2.5, -3.0]))
    assert (found.unequal, found.max_abs, found.max_rel) == (2, 1.0, 0.25)


@pytest.mark.parametrize(("a", "b"), [(math.nan, 1.0), (1.0, math.inf), (-math.inf, math.inf)])
def test_not_finite_on_one_side_is_infinitely_far(tmp_path: Path, a: float, b: float) -> None:
    found = compare(tmp_path, torch.tensor([0.0, a]), torch.tensor([0.0, b]))
    assert (found.unequal, found.max_abs, found.max_rel) == (1, math.inf, math.inf)


def test_a_sign_of_zero_is_a_difference_of_bits_only(tmp_path: Path) -> None:
    found = compare(tmp_path, torch.tensor([0.0]), torch.tensor([-0.0]))
    assert (found.unequal, found.max_abs, found.max_rel) == (1, 0.0, 0.0)


def test_other_dtypes_are_compared_by_value(tmp_path: Path) -> None:
    found = compare(tmp_path, torch.tensor([1.0, 1.001]), torch.tensor([1.0, 1.001]).bfloat16())
    assert found.unequal == 1 and found.max_abs == pytest.approx(0.001, rel=0.1)


def test_structure(tmp_path: Path) -> None:
    ones = torch.ones
    a = save(tmp_path / "a", gone=ones(1), shape=ones(2), dtype=ones(3), same=ones(4))
    b = save(tmp_path / "b", new=ones(1), shape=ones(5), dtype=ones(3).bfloat16(), same=ones(4))
    assert structural_differences(a, b) == [
        "dtype: float32 in the first, bfloat16 in the second",
        "gone: only in the first",
        "new: only in the second",
        "shape: shape (2,) in the first, (5,) in the second",
    ]
    assert structural_differences(a, a) == []


def test_fields() -> None:
    a = {"model": {"layers": 2, "same": [1]}, "old": "x\x1b", "kind": {"deep": 1}}
    b = {"model": {"layers": 3, "same": [1]}, "new": None, "kind": 4}
    assert field_differences(a, b) == [
        'kind: {"deep": 1} in the first, 4 in the second',
        "model.layers: 2 in the first, 3 in the second",
        "new: absent in the first, null in the second",
        'old: "x\\u001b" in the first, absent in the second',
    ]
