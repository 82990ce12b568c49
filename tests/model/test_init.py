# SPDX-License-Identifier: Apache-2.0
"""Initial weights: any slice of any cut is that slice of one global tensor."""

import pytest
import torch

from megatron_core.model.init import normal
from megatron_core.tensor_parallel.shard_spec import ShardSpec


def _draw(shape: tuple[int, ...], dim: int | None = None, start: int = 0, stop: int = 0, **changes) -> torch.Tensor:
    spec = ShardSpec(name=changes.pop("name", "layers.0.w"), shape=shape, dim=dim, start=start, stop=stop)
    options = {"std": 0.02, "seed": 1, "dtype": torch.float32} | changes
    return normal(spec, options.pop("std"), options.pop("seed"), **options)


@pytest.mark.parametrize("shape", [(640, 24), (4, 300, 8), (2, 512, 16), (8, 2, 40, 4)])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_slices_are_slices_of_the_whole(shape: tuple[int, ...], parts: int) -> None:
    whole = _draw(shape)
    for dim, length in enumerate(shape):
        if length % parts:
            continue
        step = length // parts
        slices = [_draw(shape, dim, i * step, (i + 1) * step) for i in range(parts)]
        assert torch.equal(torch.cat(slices, dim), whole), f"cut along {dim}"


def test_uneven_slices_and_padding_rows() -> None:
    whole = _draw((37, 8))
    last = _draw((37, 8), 0, 30, 37, rows=10)
    assert torch.equal(last[:7], whole[30:]) and not last[7:].any()
    assert not _draw((37, 8), 0, 37, 37, rows=10).any()


def test_each_block_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However scattered the slice's rows are: attention's output weight has a few in every block."""
    drawn: list[int] = []
    randn = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *shape, **options: drawn.append(shape[0]) or randn(*shape, **options))
    for shape, dim in (((64, 16, 8), 1), ((1024, 8), 1)):
        drawn.clear()
        _draw(shape, dim, 0, shape[dim] // 2)
        assert drawn == [256] * 4


def test_standard_deviation_and_mean() -> None:
    drawn = _draw((1024, 256), std=0.02)
    assert drawn.std().item() == pytest.approx(0.02, rel=0.01)
    assert abs(drawn.mean().item()) < 4 * 0.02 / drawn.numel() ** 0.5


@pytest.mark.parametrize("other", [{"name": "layers.1.w"}, {"seed": 2}])
def test_names_and_seeds_matter(other: dict) -> None:
    assert not torch.isclose(_draw((64, 8)), _draw((64, 8), **other)).any()


def test_row_blocks_are_not_copies_of_each_other() -> None:
    drawn = _draw((1024, 8))
    assert len({tuple(row.tolist()) for row in drawn}) == 1024


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_casts_of_the_same_numbers(dtype: torch.dtype) -> None:
    assert torch.equal(_draw((40, 8), dtype=dtype), _draw((40, 8)).to(dtype))
