# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest
import torch

from megatron_core.data.byte_tokenizer import ByteTokenizer
from megatron_core.errors import ConfigError, DataError
from megatron_core.evaluation.driven_model import Continuation, DrivenModel
from megatron_core.evaluation.text_encoder import TextEncoder
from megatron_core.inference.logits import logits
from megatron_core.parallel.context import ParallelContext
from tests.inference.saved_model import in_place
from tests.rank_pool import ranks
from tests.small_model import ALONE, small

BYTES = small(vocab_size=257, init_method_std=0.3)
PAIRS = [("It is", " so"), ("", "well"), ("We see a long way off", " it")]
TEXTS = ["short", "a text that is longer than the model", ""]


def driven(ctx: ParallelContext = ALONE) -> DrivenModel:
    return DrivenModel(in_place(BYTES, ctx), TextEncoder(ByteTokenizer(), 16), batch_tokens=40)


def ask(model: DrivenModel) -> list[Any]:
    with model:
        pairs = [each.log_probability for each in model.pairs(PAIRS)]
        texts = model.texts(TEXTS)
        return [pairs, texts, model.continuations(["It is", "We see a long way off"], Continuation(max_new_tokens=6))]


@ranks({"tp": 2}, {"pp": 2}, {"dp": 2})
def test_rank_0_asks_and_the_others_follow(ctx: ParallelContext) -> None:
    model = driven(ctx)
    if ctx.rank > 0:
        model.follow()
        return
    pairs, texts, continuations = ask(model)
    alone = ask(driven())
    assert pairs == pytest.approx(alone[0], rel=1e-10)
    assert texts == pytest.approx(alone[1], rel=1e-10)
    assert continuations == alone[2]


@ranks({"tp": 2})
def test_rank_0_may_ask_on_after_an_error(ctx: ParallelContext) -> None:
    model = driven(ctx)
    if ctx.rank > 0:
        model.follow()
        return
    with pytest.raises(DataError, match="no tokens of its own"), model:
        with pytest.raises(ConfigError, match="16 tokens are to be written"):
            model.continuations(["a"], Continuation(max_new_tokens=16))
        assert len(model.pairs(PAIRS)) == 3
        model.pairs([("a", "")])


@pytest.mark.parametrize(("ending", "told"), [(KeyboardInterrupt, []), (ValueError, [{"ask": "end"}])])
def test_who_is_interrupted_within_a_collective_begins_no_other(
    ending: type[BaseException], told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, requests = driven(), []
    monkeypatch.setattr(model, "_tell", requests.append)
    with pytest.raises(ending), model:
        raise ending
    assert requests == told


def test_a_text_is_scored_as_lm_eval_scores_it() -> None:
    """Windows of 16 tokens; the last one is as long and scores what is left."""
    ids = [256, *TEXTS[1].encode()]
    total = 0.0
    for start, first in ((0, 1), (16, 17), (len(ids) - 17, 33)):
        window = ids[start : start + 17]
        found = logits(in_place(BYTES), torch.tensor([window[:-1]])).log_softmax(-1)[0]
        total += sum(float(found[place - start - 1, ids[place]]) for place in range(first, start + len(window)))
    assert driven().texts(TEXTS) == pytest.approx([driven().texts(["short"])[0], total, 0.0], rel=1e-10)


def test_what_is_written_ends_before_a_stop() -> None:
    (whole,) = driven().continuations(["It is"], Continuation(max_new_tokens=8))
    assert len(whole) > 3
    (cut,) = driven().continuations(["It is"], Continuation(max_new_tokens=8, stops=[whole[2:4], whole[3:5]]))
    assert cut == whole[: whole.index(whole[2:4])]
    with pytest.raises(ConfigError, match="16 tokens are to be written, but the model reads 16"):
        driven().continuations(["It is"], Continuation(max_new_tokens=16))
