# SPDX-License-Identifier: Apache-2.0
"""A runtime that writes down when each action computed, to hold a simulated timeline against.

An action waits for its message before it computes; the log of collectives knows how long, and that time is bubble.
"""

import time
from collections.abc import Sequence
from typing import Any

from megatron_core.model.microbatch import Microbatch
from megatron_core.pipeline.action import Action, Exchange
from megatron_core.pipeline.runtime import PipelineResult, PipelineRun, PipelineRuntime
from megatron_core.pipeline.timeline import Span, Timeline


class RecordedRuntime(PipelineRuntime):
    """Does what PipelineRuntime does; `spans` are those of the last program, in seconds of the machine's clock."""

    spans: tuple[Span, ...] = ()

    def run(
        self, program: Sequence[Action | Exchange], microbatches: Sequence[Microbatch], loss_weight: float
    ) -> PipelineResult:
        """As there."""
        recorded = _RecordedRun(self, program, microbatches, loss_weight)
        self.spans = tuple(recorded.spans)
        return recorded.result()


class _RecordedRun(PipelineRun):
    def __init__(self, runtime: PipelineRuntime, *more: Any) -> None:
        self.spans: list[Span] = []
        self._log = runtime.ctx.log
        super().__init__(runtime, *more)

    def perform(self, action: Action) -> None:
        begin, before = time.monotonic(), self._waited()
        super().perform(action)
        self.spans.append(Span(action, begin + self._waited() - before, time.monotonic()))

    def _waited(self) -> float:
        return self._log.blocked_s().get("pp", 0.0)


def timeline(stages: Sequence[tuple[Span, ...]]) -> Timeline:
    """What the stages of one pipeline recorded on one machine, from the first start on."""
    first = min(spans[0].start for spans in stages)
    return Timeline(tuple(tuple(Span(s.action, s.start - first, s.end - first) for s in spans) for spans in stages))
