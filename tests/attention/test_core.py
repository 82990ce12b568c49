# SPDX-License-Identifier: Apache-2.0
"""Dense attention against its definition; causality, documents, grouped queries, dropout."""

import pytest
import torch

from megatron_core.attention.core import attend, attend_with_dropout, document_mask, flash_can_run
from tests.small_model import randn

B, A, G, S, D = 2, 4, 2, 8, 16
SCALE = 0.3


def _qkv(groups: int = A) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [b, a, s, d], k and v [b, g, s, d]."""
    return randn(B, A, S, D, seed=1), randn(B, groups, S, D, seed=2), randn(B, groups, S, D, seed=3)


def _by_definition(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """One query at a time, over the keys that it may see alone."""
    out = torch.zeros_like(q)
    for b in range(B):
        for a in range(A):
            g = a // (A // k.shape[1])
            for s in range(S):
                seen = mask[b, 0, s]
                weights = torch.softmax(k[b, g, seen] @ q[b, a, s] * SCALE, 0)
                out[b, a, s] = weights @ v[b, g, seen]
    return out


def _documents() -> torch.Tensor:
    return torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [4, 4, 5, 5, 5, 5, 6, 6]])


@pytest.mark.parametrize("groups", [A, G, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_matches_the_definition(groups: int, packed: bool) -> None:
    q, k, v = _qkv(groups)
    causal = torch.ones(S, S, dtype=torch.bool).tril().expand(B, 1, S, S)
    mask = document_mask(_documents()) if packed else None
    expected = _by_definition(q, k, v, causal if mask is None else mask)
    torch.testing.assert_close(attend(q, k, v, mask, SCALE), expected, rtol=1e-12, atol=1e-12)
    ones = torch.ones(B, A, S, S, dtype=torch.bool)
    torch.testing.assert_close(attend_with_dropout(q, k, v, mask, SCALE, ones, 0.0), expected, rtol=1e-12, atol=1e-12)


def test_dropped_probabilities_are_not_renormalised() -> None:
    q, k, v = _qkv()
    keep = torch.zeros(B, A, S, S, dtype=torch.bool)
    keep[:, :, :, 0] = True
    probability = (q @ k.transpose(-1, -2) * SCALE).masked_fill(~torch.ones(S, S).tril().bool(), -torch.inf).softmax(-1)
    expected = 2 * probability[..., :1] * v[:, :, :1]
    torch.testing.assert_close(attend_with_dropout(q, k, v, None, SCALE, keep, 0.5), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dropout", [False, True])
def test_later_keys_do_not_reach_earlier_queries(dropout: bool) -> None:
    q, k, v = _qkv()
    ones = torch.ones(B, A, S, S, dtype=torch.bool)

    def run() -> torch.Tensor:
        return attend_with_dropout(q, k, v, None, SCALE, ones, 0.0) if dropout else attend(q, k, v, None, SCALE)

    before = run()
    k[:, :, 5:], v[:, :, 5:] = 7.0, -3.0
    after = run()
    assert torch.equal(after[:, :, :5], before[:, :, :5])
    assert not torch.equal(after[:, :, 5:], before[:, :, 5:])


def test_document_mask() -> None:
    mask = document_mask(torch.tensor([[3, 3, 4, 4]]))
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert mask.shape == (1, 1, 4, 4) and mask[0, 0].int().tolist() == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16bit_inputs_give_16bit_outputs(dtype: torch.dtype) -> None:
    q, k, v = _qkv()
    expected = attend(q, k, v, None, SCALE)
    got = attend(q.to(dtype), k.to(dtype), v.to(dtype), None, SCALE)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("dtype", "masked", "capability", "runs"),
    [
        (torch.bfloat16, False, (9, 0), True),
        (torch.float16, False, (8, 0), True),
        (torch.float16, False, (7, 0), False),  # V100
        (torch.bfloat16, True, (9, 0), False),
        (torch.float32, False, (9, 0), False),
    ],
)
def test_where_query_groups_need_no_copies(
    dtype: torch.dtype, masked: bool, capability: tuple[int, int], runs: bool
) -> None:
    assert flash_can_run(dtype, masked, capability) == runs


def test_one_query_a_head_and_many_keys() -> None:
    """As in generation: the heads of a group share its keys without a copy of them."""
    q, k, v = randn(2, 6, 1, 8, seed=1), randn(2, 5, 3, 8, seed=2).transpose(1, 2), randn(2, 3, 5, 8, seed=3)
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])[:, None, None]
    out = attend(q, k, v, mask, 0.5)
    for row, seen in enumerate((5, 2)):
        for head in range(6):
            scores = q[row, head] @ k[row, head // 2, :seen].t() * 0.5
            expected = scores.softmax(-1) @ v[row, head // 2, :seen]
            torch.testing.assert_close(out[row, head], expected, rtol=1e-12, atol=1e-14)
