# SPDX-License-Identifier: Apache-2.0
"""Reads the microbatches of coming steps in background threads.

What is read is fixed by the plan and handed out in its order, so threads change when a batch is ready, never which one
it is. Threads suffice: reading and stacking spend their time in system calls and numpy, which free the interpreter.
"""

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

from megatron_core.data.batch import Batch, DocumentRules, make_batch
from megatron_core.data.sample import TrainingData, ValidationData, padding_sample
from megatron_core.data.sampler import PADDING, StepPlan

logger = logging.getLogger(__name__)


class Loader:
    """Iterator over steps, each a tuple of microbatches. `with` it, or close() it.

    `plan` gives the sample numbers of each step and is taken `ahead` steps further than what was handed out;
    `num_workers` threads read (0: the caller's). An exception in a thread is raised by the next() of its step.
    """

    def __init__(
        self,
        data: TrainingData | ValidationData,
        plan: Iterable[StepPlan],
        *,
        seq_length: int,
        rules: DocumentRules,
        num_workers: int = 2,
        ahead: int = 2,
        warn_after_s: float = 30.0,
    ) -> None:
        self._data = data
        self._plan = iter(plan)
        self._seq_length = seq_length
        self._rules = rules
        self._ahead = ahead
        self._warn_after_s = warn_after_s
        self._pool = ThreadPoolExecutor(num_workers, "loader") if num_workers else None
        self._steps: deque[list[tuple[tuple[int, ...], Future[Batch]]]] = deque()

    def __iter__(self) -> Iterator[tuple[Batch, ...]]:
        return self

    def __next__(self) -> tuple[Batch, ...]:
        if self._pool is None:
            return tuple(self._read(numbers) for numbers in next(self._plan))
        while len(self._steps) <= self._ahead and (step := next(self._plan, None)) is not None:
            self._steps.append([(numbers, self._pool.submit(self._read, numbers)) for numbers in step])
        if not self._steps:
            raise StopIteration
        return tuple(self._wait(numbers, future) for numbers, future in self._steps.popleft())

    def close(self) -> None:
        """Drop what was read ahead and end the threads."""
        self._steps.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, numbers: tuple[int, ...]) -> Batch:
        samples = [padding_sample(self._seq_length) if n == PADDING else self._data.sample(n) for n in numbers]
        return make_batch(samples, self._rules)

    def _wait(self, numbers: tuple[int, ...], future: "Future[Batch]") -> Batch:
        """The batch; says every `warn_after_s` seconds what it is waiting for."""
        started = time.monotonic()
        while not wait([future], timeout=self._warn_after_s).done:
            sources = sorted({self._data.source(n) for n in numbers if n != PADDING})
            waited = time.monotonic() - started
            logger.warning("waiting for %.1f s for samples %s of %s", waited, list(numbers), ", ".join(sources))
        return future.result()
