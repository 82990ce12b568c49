# SPDX-License-Identifier: Apache-2.0
"""Sets of other sizes than a batch, at every layout, are tested end to end."""

import math

from megatron_core.data.mock_samples import MockSamples
from megatron_core.data.sample import Sample
from megatron_core.training.stop import Stop
from megatron_core.training.validation import validate, validate_set
from tests.e2e.proof import FAMILIES, nobody, start_rank

FLAGS = f"{FAMILIES['gpt2']} --micro-batch-size 2"


class Untargeted:
    """Two samples that are padding throughout."""

    num_samples = 2

    def sample(self, number: int) -> Sample:
        return Sample(number, MockSamples(61, 16, 1, "valid").sample(number).tokens, 0)

    def source(self, number: int) -> str:
        return "nowhere"


def test_each_set_has_its_line() -> None:
    run, state = start_rank(0, 1, FLAGS)
    sets = {name: MockSamples(61, 16, 1, name, size) for name, size in (("books", 3), ("code", 9))}
    books, code = (validate(run, state, name, samples, nobody(run)) for name, samples in sets.items())
    assert (books.validation_set, books.validation_tokens, books.step) == ("books", 48, 0)
    assert (code.validation_set, code.validation_tokens) == ("code", 144)
    assert books.validation_loss != code.validation_loss
    assert abs(code.validation_loss - math.log(61)) < 0.1


def test_no_targets_have_no_mean() -> None:
    run, _ = start_rank(0, 1, FLAGS)
    loss, tokens = validate_set(run, Untargeted(), nobody(run))
    assert math.isnan(loss) and tokens == 0


def test_no_gradient_is_left() -> None:
    run, _ = start_rank(0, 1, FLAGS)
    validate_set(run, MockSamples(61, 16, 1, "valid", 4), nobody(run))
    assert all(not bucket.grads.any() for bucket in run.reducer.buckets)


def test_a_pass_ends_with_the_batch_in_which_some_rank_was_asked_to_stop() -> None:
    run, state = start_rank(0, 1, FLAGS)
    requests, read = nobody(run), []

    class Asked(MockSamples):
        def sample(self, number: int) -> Sample:
            requests.save_failed = True
            read.append(number)
            return super().sample(number)

    assert validate(run, state, "books", Asked(61, 16, 1, "valid", 80), requests) is Stop.SAVE_FAILURE
    assert len(read) == 8, "one batch of ten"
