# SPDX-License-Identifier: Apache-2.0
"""One stage's programs by number of microbatches, proved when first asked for: a batch ramp needs several."""

from functools import cache

from megatron_core.pipeline.action import Action, Exchange
from megatron_core.pipeline.check import check
from megatron_core.pipeline.communicate import communicate
from megatron_core.pipeline.schedules import build, forward_only

Steps = tuple[Action | Exchange, ...]


class Programs:
    """What one stage does in a training step and in a validation step."""

    def __init__(self, name: str, p: int, v: int, stage: int) -> None:
        """`name`: the schedule's; p stages of v chunks, of which this is number `stage`."""
        self._name, self._p, self._v, self._stage = name, p, v, stage
        self.training = cache(self._training)
        self.evaluation = cache(self._evaluation)

    def _training(self, m: int) -> Steps:
        program = communicate(build(self._name, self._p, self._v, m), self._v)
        check(program, self._p, self._v, m)
        return program[self._stage]

    def _evaluation(self, m: int) -> Steps:
        return communicate(forward_only(self._p, self._v, m), self._v)[self._stage]
