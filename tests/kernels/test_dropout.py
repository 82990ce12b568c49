# SPDX-License-Identifier: Apache-2.0
"""Masks depend on their key alone: not on slices, batching, order of samples, nor on what was drawn before."""

import pytest
import torch

from megatron_core.kernels.dropout import DropoutKey, attention_keep_mask, hidden_dropout

S, H = 64, 32
KEY = DropoutKey(seed=1, step=5, sample_numbers=(10, 11))


def _dropped(key: DropoutKey | None, rate: float = 0.25, layer: int = 3, place: str = "mlp_output") -> torch.Tensor:
    b = 2 if key is None else len(key.sample_numbers)
    return hidden_dropout(torch.ones(S, b, H, dtype=torch.float64), rate, key, layer, place, range(S), S)


@pytest.mark.parametrize("key, rate", [(None, 0.5), (KEY, 0.0)])
def test_nothing_is_dropped_in_evaluation_or_at_rate_zero(key: DropoutKey | None, rate: float) -> None:
    x = torch.randn(S, 2, H)
    assert hidden_dropout(x, rate, key, 0, "embedding", range(S), S) is x


def test_kept_elements_are_scaled_so_that_the_mean_stays() -> None:
    out = _dropped(KEY)
    assert set(out.unique().tolist()) == {0.0, 1 / 0.75}
    dropped = (out == 0).double().mean().item()
    assert abs(dropped - 0.25) < 4 * (0.25 * 0.75 / out.numel()) ** 0.5


def test_the_same_key_drops_the_same_elements() -> None:
    first = _dropped(KEY)
    torch.rand(1000)
    assert torch.equal(_dropped(KEY), first)


@pytest.mark.parametrize(
    "other",
    [
        {"key": DropoutKey(seed=2, step=5, sample_numbers=(10, 11))},
        {"key": DropoutKey(seed=1, step=6, sample_numbers=(10, 11))},
        {"key": DropoutKey(seed=1, step=5, sample_numbers=(12, 13))},
        {"layer": 4},
        {"place": "attention_output"},
    ],
)
def test_each_part_of_the_key_matters(other: dict) -> None:
    same = (_dropped(**({"key": KEY} | other)) == _dropped(KEY)).double().mean().item()
    assert abs(same - (0.75**2 + 0.25**2)) < 0.03  # independent masks agree this often


def test_samples_carry_their_masks_wherever_they_are_batched() -> None:
    both = _dropped(KEY)
    assert torch.equal(_dropped(DropoutKey(1, 5, (11, 10))), both.flip(1))
    assert torch.equal(_dropped(DropoutKey(1, 5, (11,))), both[:, 1:])
    assert not torch.equal(both[:, 0], both[:, 1])


def test_a_sequence_slice_gets_its_slice_of_the_mask() -> None:
    x = torch.ones(S // 4, 2, H, dtype=torch.float64)
    parts = [hidden_dropout(x, 0.25, KEY, 3, "mlp_output", range(i, i + S // 4), S) for i in range(0, S, S // 4)]
    assert torch.equal(torch.cat(parts), _dropped(KEY))


def test_a_slice_of_the_heads_gets_its_masks() -> None:
    like = torch.zeros(2, 4, 16, 8, dtype=torch.float64)
    whole = attention_keep_mask(KEY, 0.5, 0, range(4), like)  # [b, a, s, s]
    assert whole.shape == (2, 4, 16, 16) and whole.dtype == torch.bool
    assert 0.45 < whole.double().mean() < 0.55
    assert torch.equal(attention_keep_mask(KEY, 0.5, 0, range(2, 4), like[:, 2:]), whole[:, 2:])
    assert len({tuple(mask.flatten().tolist()) for mask in whole.flatten(0, 1)}) == 8


def test_the_mean_survives_in_16_bit() -> None:
    """1/0.9 rounded to bf16 is 0.16 % off; the scale is applied in fp32 and only its product is rounded."""
    x = torch.ones(64, 1, 64, dtype=torch.bfloat16)
    out = hidden_dropout(x, 0.1, DropoutKey(1, 2, (3,)), 0, "mlp_output", range(64), 64)
    assert out.max() == torch.tensor(1 / 0.9).bfloat16()
    y = hidden_dropout(9 * x, 0.1, DropoutKey(1, 2, (3,)), 0, "mlp_output", range(64), 64)
    assert y.max() == 10.0
