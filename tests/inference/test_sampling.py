# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from megatron_core.errors import ConfigError
from megatron_core.inference.sampling import Sampling, draw, penalized

LOGITS = torch.randn(1, 12, generator=torch.Generator().manual_seed(2)) * 2
DRAWS = 4000


def frequencies(sampling: Sampling) -> torch.Tensor:
    """How often each token is drawn for one row's logits at many positions."""
    drawn = draw(LOGITS.expand(DRAWS, -1), sampling, [3] * DRAWS, range(DRAWS))
    return torch.bincount(drawn, minlength=12) / DRAWS


@pytest.mark.parametrize(
    ("sampling", "theirs"),
    [
        (Sampling(), []),
        (Sampling(temperature=0.7), [TemperatureLogitsWarper(0.7)]),
        (Sampling(top_k=3), [TopKLogitsWarper(3)]),
        (Sampling(top_p=0.8), [TopPLogitsWarper(0.8)]),
        (Sampling(top_k=1), [TopKLogitsWarper(1)]),
        (Sampling(top_p=1e-9), [TopPLogitsWarper(1e-9)]),
        (
            Sampling(temperature=1.5, top_k=6, top_p=0.7),
            [TemperatureLogitsWarper(1.5), TopKLogitsWarper(6), TopPLogitsWarper(0.7)],
        ),
    ],
)
def test_frequencies_are_those_of_transformers_distribution(sampling: Sampling, theirs: list) -> None:
    scores = LOGITS
    for processor in theirs:
        scores = processor(None, scores)
    expected = scores.softmax(-1)[0]
    found = frequencies(sampling)
    assert (found[expected == 0] == 0).all(), "a token was drawn that had been cut away"
    deviations = (expected * (1 - expected) / DRAWS).sqrt()
    assert ((found - expected).abs() <= 4 * deviations).all()


def test_greedy_is_the_likeliest_and_of_equals_the_first() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [1.0, 0.0, 0.5]])
    assert draw(logits, Sampling(temperature=0), [0, 1], [5, 5]).tolist() == [1, 0]


def test_a_draw_depends_on_seed_row_and_position_alone() -> None:
    logits = torch.zeros(6, 1000)
    rows, positions = [0, 1, 2, 3, 4, 5], [7, 7, 8, 9, 9, 7]
    drawn = draw(logits, Sampling(), rows, positions).tolist()
    assert len(set(drawn)) > 3
    backwards = draw(logits[:3], Sampling(), rows[:2:-1], positions[:2:-1]).tolist()
    assert backwards == drawn[:2:-1]
    assert draw(logits, Sampling(seed=1), rows, positions).tolist() != drawn
    assert draw(logits, Sampling(), rows, [p + 1 for p in positions]).tolist() != drawn


def test_a_uniform_that_rounds_to_one_draws_a_possible_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatron_core.inference.sampling.keyed_seed", lambda *key: 2**63 - 1)
    logits = torch.tensor([[0.0, 1.0, -torch.inf, -torch.inf]])
    assert draw(logits, Sampling(), [0], [0]).tolist() == [1]
    assert draw(logits, Sampling(top_p=0.5), [0], [0]).tolist() == [1]
    monkeypatch.setattr("megatron_core.inference.sampling.keyed_seed", lambda *key: 0)
    assert draw(logits.flip(1), Sampling(), [0], [0]).tolist() == [2]


def test_penalty_is_that_of_transformers() -> None:
    prompt = torch.tensor([[3, 5, 3, 7]])
    seen = torch.zeros(1, 12, dtype=torch.bool)
    seen[0, prompt[0]] = True
    torch.testing.assert_close(penalized(LOGITS, seen, 1.3), RepetitionPenaltyLogitsProcessor(1.3)(prompt, LOGITS))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -0.1}, "--temperature is -0.1; it must be at least 0"),
        ({"temperature": float("nan")}, "--temperature is nan"),
        ({"top_k": 0}, "--top-k is 0; it must be at least 1"),
        ({"top_p": 0.0}, "--top-p is 0.0; it must be above 0 and at most 1"),
        ({"top_p": 1.1}, "--top-p is 1.1"),
        ({"repetition_penalty": 0.0}, "--repetition-penalty is 0.0; it must be above 0"),
    ],
)
def test_numbers_without_meaning(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        Sampling(**wrong)
