# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from megatron_core.inference.kv_cache import KVCache
from megatron_core.inference.model import InferenceModel
from tests.inference.saved_model import MODELS, in_place

TOKENS = torch.randint(37, (3, 9), generator=torch.Generator().manual_seed(8))
STARTS = [1, 6, 4]


def whole(model: InferenceModel, row: int, length: int) -> torch.Tensor:
    x = model.residual_stream(TOKENS[row : row + 1, :length], torch.arange(length).unsqueeze(0))
    assert x is not None
    return x[-1, 0]


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_token_by_token_as_all_at_once(name: str) -> None:
    """Rows of different lengths, padded with other tokens than those that come there later."""
    model, cache = in_place(MODELS[name]), KVCache(slots=9)
    padded = torch.where(torch.arange(6) < torch.tensor(STARTS).unsqueeze(1), TOKENS[:, :6], 36)
    x = model.residual_stream(padded, torch.arange(6).unsqueeze(0), cache.prompts())
    assert x is not None
    rows = [0, 1, 2]
    for row in rows:
        torch.testing.assert_close(x[STARTS[row] - 1, row], whole(model, row, STARTS[row]), rtol=1e-10, atol=1e-12)
    for step in range(3):
        if step == 2:
            rows = [2, 0]
            cache.keep_rows(torch.tensor(rows))
        positions = torch.tensor([STARTS[row] + step for row in rows])
        earlier = cache.next_tokens(positions, int(positions.max()) + 1)
        x = model.residual_stream(TOKENS[rows].gather(1, positions.unsqueeze(1)), positions.unsqueeze(1), earlier)
        assert x is not None and x.shape[:2] == (1, len(rows))
        for index, row in enumerate(rows):
            expected = whole(model, row, STARTS[row] + step + 1)
            torch.testing.assert_close(x[0, index], expected, rtol=1e-10, atol=1e-12)


def test_memory_is_taken_once() -> None:
    cache = KVCache(slots=5)
    k = torch.randn(2, 3, 4, 8)
    cache.prompts().joined(0, k, k)
    before = cache.layers[0][0].data_ptr()
    assert not cache.layers[0][1][:, :, 4:].any(), "a masked slot that holds no number would still spoil the product"
    keys, _ = cache.next_tokens(torch.tensor([4, 4]), 5).joined(0, k[:, :, :1], k[:, :, :1])
    assert keys.data_ptr() == cache.layers[0][0].data_ptr() == before
    assert torch.equal(keys, torch.cat([k, k[:, :, :1]], 2))
