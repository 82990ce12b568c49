# SPDX-License-Identifier: Apache-2.0
"""Threads change when batches are ready, never which ones they are; failures surface in the caller."""

import logging
import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from megatron_core.data.batch import DocumentRules
from megatron_core.data.loader import Loader
from megatron_core.data.sample import Sample
from megatron_core.data.sampler import StepPlan
from megatron_core.errors import DataError

RULES = DocumentRules(eod=None, vocab_size=1000)


class Jittery:
    """Samples that take a random time, or do what `act` says."""

    def __init__(self, act: Callable[[int], None] = lambda number: time.sleep(random.random() / 500)) -> None:
        self.act = act

    def sample(self, number: int) -> Sample:
        self.act(number)
        return Sample(number, np.arange(number, number + 5), 4)

    def source(self, number: int) -> str:
        return "corpus/part"


def plan(steps: int) -> list[StepPlan]:
    return [((4 * k, 4 * k + 1), (4 * k + 2, 4 * k + 3)) for k in range(steps)]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_order_does_not_depend_on_timing(workers: int) -> None:
    with Loader(Jittery(), plan(20), seq_length=4, rules=RULES, num_workers=workers) as loader:
        numbers = [batch.sample_numbers.tolist() for step in loader for batch in step]
    assert numbers == [[2 * i, 2 * i + 1] for i in range(40)]


def test_padding_is_not_read() -> None:
    def fail_on_padding(number: int) -> None:
        assert number >= 0

    with Loader(Jittery(fail_on_padding), [((3, -1),)], seq_length=4, rules=RULES) as loader:
        (batch,) = next(loader)
    assert batch.loss_mask.sum(1).tolist() == [4, 0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failure_is_raised_at_its_step(workers: int) -> None:
    def fail(number: int) -> None:
        if number == 6:
            raise DataError("corpus/part.bin: ends at byte 20")

    with Loader(Jittery(fail), plan(5), seq_length=4, rules=RULES, num_workers=workers) as loader:
        next(loader)
        with pytest.raises(DataError, match=r"part\.bin"):
            next(loader)


def test_it_reads_ahead_but_not_everything() -> None:
    seen: list[int] = []
    with Loader(Jittery(seen.append), plan(50), seq_length=4, rules=RULES, num_workers=1, ahead=2) as loader:
        next(loader)
        time.sleep(0.1)
        assert max(seen) == 11


def test_a_reader_that_stalls_is_named(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    with Loader(Jittery(lambda n: gate.wait(10)), plan(1), seq_length=4, rules=RULES, warn_after_s=0.05) as loader:
        threading.Timer(0.3, gate.set).start()
        with caplog.at_level(logging.WARNING):
            next(loader)
    assert "samples [0, 1] of corpus/part" in caplog.text


def test_closing_ends_the_threads() -> None:
    before = threading.active_count()
    loader = Loader(Jittery(), plan(1000), seq_length=4, rules=RULES, num_workers=3)
    next(loader)
    loader.close()
    assert threading.active_count() == before
