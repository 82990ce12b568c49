# SPDX-License-Identifier: Apache-2.0
import torch

from megatron_core.inference.logits import logits
from megatron_core.model.microbatch import Microbatch
from megatron_core.parallel.context import ParallelContext
from tests.inference.saved_model import GPT2, in_place
from tests.rank_pool import ranks
from tests.small_model import make_factory, make_model, small

TOKENS = torch.randint(5, (2, 6), generator=torch.Generator().manual_seed(3))


def test_they_are_those_whose_softmax_is_the_loss() -> None:
    labels = torch.randint(37, (2, 6), generator=torch.Generator().manual_seed(4))
    chunk = make_model(make_factory(GPT2))
    batch = Microbatch(position_ids=torch.arange(6).unsqueeze(0), tokens=TOKENS, labels=labels)
    found = logits(in_place(GPT2), TOKENS)
    losses = torch.nn.functional.cross_entropy(found.flatten(0, 1), labels.flatten(), reduction="none")
    torch.testing.assert_close(losses.view(2, 6), chunk(None, batch), rtol=1e-12, atol=1e-12)


@ranks({"tp": 4})
def test_a_rank_that_stores_padding_alone(ctx: ParallelContext) -> None:
    config = small(vocab_size=5, make_vocab_size_divisible_by=8)
    found = logits(in_place(config, ctx), TOKENS)
    assert found.shape == (2, 6, 5)
    torch.testing.assert_close(found, logits(in_place(config), TOKENS), rtol=1e-10, atol=1e-12)


def test_16_bit_logits_are_widened() -> None:
    assert logits(in_place(GPT2, dtype=torch.bfloat16), TOKENS).dtype == torch.float32
