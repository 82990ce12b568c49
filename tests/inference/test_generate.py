# SPDX-License-Identifier: Apache-2.0
"""Named cases of cases.md, and what else generation promises."""

import itertools
import logging
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from megatron_core.config.model import ModelConfig
from megatron_core.errors import ConfigError
from megatron_core.inference.generate import Generated, GenerationSettings, generate
from megatron_core.inference.logits import logits
from megatron_core.inference.model import InferenceModel
from megatron_core.inference.sampling import Sampling
from megatron_core.parallel.context import ParallelContext
from tests.inference.saved_model import GPT2, LLAMA, MODELS, in_place
from tests.rank_pool import ranks
from tests.small_model import ALONE, small

GREEDY = Sampling(temperature=0)
PROMPTS = [[5], [1, 2, 3, 4, 5, 6, 7, 8, 9], [11, 12, 13, 14, 15]]


def tokens_of(found: Sequence[Generated]) -> list[list[int]]:
    return [row.tokens for row in found]


def without_cache(model: InferenceModel, prompt: Sequence[int], count: int) -> tuple[list[int], list[torch.Tensor]]:
    """Greedy tokens one whole forward after the other, and the logits [v] of each."""
    tokens, rows = list(prompt), []
    for _ in range(count):
        rows.append(logits(model, torch.tensor([tokens]))[0, -1])
        tokens.append(int(rows[-1].argmax()))
    return tokens[len(prompt) :], rows


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.0, seed=7)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", MODELS)
@ranks({"tp": 2}, {"pp": 2}, {"dp": 2}, {"tp": 2, "pp": 2}, {"tp": 4})
def test_gen_01_all_ranks_and_layouts_have_the_same_tokens(ctx: ParallelContext, name: str, sampling: Sampling) -> None:
    settings = GenerationSettings(max_new_tokens=7, sampling=sampling)
    expected = generate(in_place(MODELS[name], dtype=torch.float32), PROMPTS, settings)
    for chunks in (1, 2):
        model = in_place(MODELS[name], ctx, chunks_a_stage=chunks, dtype=torch.float32)
        found = generate(model, PROMPTS, settings)
        assert tokens_of(found) == tokens_of(expected)
        for row, other in zip(found, expected):
            assert row.log_probabilities == pytest.approx(other.log_probabilities, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_gen_02_a_prompt_in_company_as_alone_with_and_without_cache(name: str) -> None:
    model, settings = in_place(MODELS[name]), GenerationSettings(max_new_tokens=7, sampling=GREEDY)
    together = generate(model, PROMPTS, settings)
    assert together[::-1] == generate(model, PROMPTS[::-1], settings)
    for prompt, row in zip(PROMPTS, together):
        (alone,) = generate(model, [prompt], settings)
        tokens, rows = without_cache(model, prompt, 7)
        assert row.tokens == alone.tokens == tokens
        expected = [float(r.log_softmax(-1)[token]) for r, token in zip(rows, tokens)]
        assert row.log_probabilities == pytest.approx(expected, rel=1e-10, abs=1e-10)
        assert alone.log_probabilities == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_gen_02_beyond_the_positions(caplog: pytest.LogCaptureFixture) -> None:
    """Learned positions end; rotary ones go on, which is said once."""
    settings = GenerationSettings(max_new_tokens=20, sampling=GREEDY)
    with pytest.raises(ConfigError) as caught:
        generate(in_place(GPT2), PROMPTS, settings)
    assert str(caught.value) == (
        "prompt 1 has 9 tokens, 29 with --max-new-tokens 20, but the model has 16 positions: shorten it, or generate "
        "fewer"
    )
    assert len(generate(in_place(GPT2), [[1] * 9], GenerationSettings(max_new_tokens=7))[0].tokens) == 7
    model = in_place(LLAMA)
    with caplog.at_level(logging.WARNING, "megatron_core"):
        (row,) = generate(model, PROMPTS[1:2], settings)
    assert [record.getMessage() for record in caplog.records] == [
        "up to 29 tokens, but the model was trained on 16 at a time: what lies beyond may be poor"
    ]
    assert row.tokens == without_cache(model, PROMPTS[1], 20)[0]


def rigged(ctx: ParallelContext, chunks: int = 1) -> InferenceModel:
    """A model in which token t is always followed by t + 1: the embedding alone counts, and the head looks for it."""
    config: ModelConfig = small(
        num_layers=4, hidden_size=40, position_embedding_type="none", untie_embeddings_and_output_weights=True
    )
    model = in_place(config, ctx, chunks_a_stage=chunks)
    with torch.no_grad():
        for parameter in nn.ModuleList(model.chunks).parameters():
            if parameter.spec.name.endswith(("output.weight", "down.weight")):
                parameter.zero_()
            if parameter.spec.name in ("embedding.tokens.weight", "head.weight"):
                shift = 1 if parameter.spec.name == "head.weight" else 0
                table = torch.eye(40, dtype=torch.float64).roll(shift, 0)[:37]
                parameter[: parameter.spec.stop - parameter.spec.start] = parameter.spec.take(table)
    return model


@ranks({}, {"tp": 2}, {"pp": 2}, {"dp": 2})
def test_gen_04_each_row_ends_at_its_own_end(ctx: ParallelContext) -> None:
    prompts, told = [[7], [3], [20]], []
    settings = GenerationSettings(max_new_tokens=12, sampling=GREEDY, end_ids=frozenset({10, 35}))
    rows = generate(rigged(ctx), prompts, settings, on_tokens=lambda numbers, tokens: told.append((numbers, tokens)))
    assert tokens_of(rows) == [[8, 9, 10], [4, 5, 6, 7, 8, 9, 10], list(range(21, 33))]
    assert [row.stopped for row in rows] == ["end", "end", "length"]
    assert [len(row.log_probabilities) for row in rows] == [3, 7, 12]
    if ctx.dp.size == 1:
        assert len(told) == 12, "the loop ends when all rows have"
        streamed = {n: [t for numbers, tokens in told for m, t in zip(numbers, tokens) if m == n] for n in range(3)}
        assert list(streamed.values()) == tokens_of(rows)
    assert tokens_of(generate(rigged(ctx), [[30]], settings)) == [[31, 32, 33, 34, 35]], "the other end id"


def test_gen_04_all_ended_rows_end_the_loop() -> None:
    steps = itertools.count()
    settings = GenerationSettings(max_new_tokens=12, sampling=GREEDY, end_ids=frozenset({10}))
    rows = generate(rigged(ALONE), [[7], [8]], settings, on_tokens=lambda *_: next(steps))
    assert tokens_of(rows) == [[8, 9, 10], [9, 10]] and next(steps) == 3


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(top_k=20, top_p=0.9, repetition_penalty=1.2)])
def test_32_prompts_in_one_batch_as_32_single_runs(sampling: Sampling) -> None:
    """Ends come early for many, so that the batch closes its ranks several times."""
    generator = torch.Generator().manual_seed(9)
    lengths = torch.randint(1, 11, (32,), generator=generator).tolist()
    prompts = [torch.randint(37, (n,), generator=generator).tolist() for n in lengths]
    settings = GenerationSettings(max_new_tokens=6, sampling=sampling, end_ids=frozenset(range(6)))
    model = in_place(GPT2, dtype=torch.float32)
    together = generate(model, prompts, settings)
    assert {row.stopped for row in together} == {"end", "length"}
    single = [
        generate(model, [prompt if m == n else [0] for m in range(n + 1)], settings)[n]
        for n, prompt in enumerate(prompts[:8])
    ]
    assert tokens_of(together[:8]) == tokens_of(single)
    in_sevens = generate(model, prompts, GenerationSettings(**{**vars(settings), "batch_size": 7}))
    one_by_one = generate(model, prompts, GenerationSettings(**{**vars(settings), "batch_size": 1}))
    assert tokens_of(together) == tokens_of(one_by_one) == tokens_of(in_sevens)


def test_until_ends_a_row() -> None:
    settings = GenerationSettings(max_new_tokens=12, sampling=GREEDY)
    rows = generate(rigged(ALONE), [[7], [30]], settings, until=lambda tokens: tokens[-2:] == [9, 10])
    assert tokens_of(rows) == [[8, 9, 10], [31, 32, 33, 34, 35, 36, *rows[1].tokens[6:]]]
    assert [row.stopped for row in rows] == ["end", "length"]


def test_no_prompts() -> None:
    assert generate(in_place(GPT2), [], GenerationSettings()) == []


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[1], []], "^prompt 1 is empty: there is nothing to continue$"),
        ([[1, 37]], "^prompt 0 has the id 37; the model has 0 to 36$"),
        ([[1, -1]], "^prompt 0 has the id -1"),
    ],
)
def test_prompts_that_cannot_be_continued(prompts: list[list[int]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generate(in_place(GPT2), prompts, GenerationSettings(max_new_tokens=1))


def test_settings_without_meaning() -> None:
    with pytest.raises(ConfigError, match="--max-new-tokens is 0"):
        GenerationSettings(max_new_tokens=0)
    with pytest.raises(ConfigError, match="--batch-size is 0"):
        GenerationSettings(batch_size=0)


@ranks({"tp": 2})
def test_chunks_of_a_run_with_sequence_parallelism(ctx: ParallelContext) -> None:
    """One token a row is padded to two, and so are the 9 of the longest prompt, which leave no slot for a tenth."""
    for count in (1, 5):
        settings = GenerationSettings(max_new_tokens=count, sampling=GREEDY)
        found = generate(in_place(LLAMA, ctx, sequence_parallel=True), PROMPTS, settings)
        assert tokens_of(found) == tokens_of(generate(in_place(LLAMA), PROMPTS, settings))
