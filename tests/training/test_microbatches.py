# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from megatron_core.data.batch import DocumentRules
from megatron_core.data.loader import Loader
from megatron_core.data.mock_samples import MockSamples
from megatron_core.data.sampler import StepPlan
from megatron_core.kernels.dropout import DropoutKey
from megatron_core.parallel.context import ParallelContext, single_process_context
from megatron_core.training.microbatches import MicrobatchSource, looks_at_tokens
from tests.rank_pool import ranks

PLAN: StepPlan = ((0, 1), (2, 3), (4, 5))
SAMPLES = MockSamples(32, 8, 1234, "train")


def source(ctx: ParallelContext, plan: StepPlan = PLAN, *, reads: bool, masks: bool = False) -> MicrobatchSource:
    rules = DocumentRules(eod=31, vocab_size=32, reset_attention_mask=masks)
    loader = Loader(SAMPLES, iter([plan]), seq_length=8, rules=rules, num_workers=0) if reads else None
    return MicrobatchSource(ctx, 8, loader, needs_tokens=True, masks=masks)


@pytest.mark.parametrize("masks", [False, True])
@ranks(2, tp=2)
def test_one_rank_reads_and_all_of_tp_get_the_same(ctx: ParallelContext, masks: bool) -> None:
    given = source(ctx, reads=ctx.tp.coordinate == 0, masks=masks).step(PLAN, (7, 3))
    assert len(given) == 3
    for samples, batch in zip(PLAN, given):
        rows = torch.stack([torch.from_numpy(SAMPLES.sample(n).tokens) for n in samples])
        assert torch.equal(batch.tokens, rows[:, :-1]) and torch.equal(batch.labels, rows[:, 1:])
        assert batch.loss_mask.dtype == torch.bool and batch.loss_mask.all()
        assert batch.position_ids.tolist() == [list(range(8))] * 2
        assert (batch.document_ids is not None) == masks
        assert batch.dropout == DropoutKey(7, 3, samples)


def test_inner_stages_need_positions_and_sample_numbers_alone() -> None:
    inner = MicrobatchSource(single_process_context(), 8, None, needs_tokens=False, masks=False)
    batches = inner.step(PLAN, (7, 3))
    assert [batch.dropout for batch in batches] == [DropoutKey(7, 3, samples) for samples in PLAN]
    assert all(batch.tokens is None and batch.position_ids.shape == (1, 8) for batch in batches)


def test_evaluation_drops_nothing() -> None:
    assert all(batch.dropout is None for batch in source(single_process_context(), reads=True).step(PLAN, None))


def test_a_loader_at_another_step_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="the loader gave"):
        source(single_process_context(), PLAN[:2], reads=True).step(PLAN, None)


@ranks(3, pp=3)
def test_the_ends_look_at_tokens(ctx: ParallelContext) -> None:
    assert looks_at_tokens(ctx, by_document=False) == (ctx.pp.coordinate != 1)
    assert looks_at_tokens(ctx, by_document=True)
