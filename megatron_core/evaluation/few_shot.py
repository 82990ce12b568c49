# SPDX-License-Identifier: Apache-2.0
"""Which solved examples stand in front of a question: those that lm_eval draws with its own seed.

One generator serves all questions of a task, so the examples of a question depend on how many came before it, and on
nothing else. A question is never its own example.
"""

from collections.abc import Hashable, Iterator, Sequence
from random import Random
from typing import TypeVar

from megatron_core.errors import DataError

SEED = 1234
_DELIMITER = "\n\n"
T = TypeVar("T", bound=Hashable)


def draw_examples(asked: Sequence[T], pool: Sequence[T], count: int, seed: int = SEED) -> Iterator[list[T]]:
    """`count` examples from the pool for each that is asked, in order. Raises DataError where the pool is too small."""
    if count == 0:
        yield from ([] for _ in asked)
        return
    if len(pool) <= count:
        raise DataError(f"{len(pool)} rows to draw {count} examples from: one more than the examples is needed")
    random = Random(seed)
    for each in asked:
        # One more than needed is drawn, and copies of the row itself are dropped.
        drawn = [example for example in random.sample(pool, count + 1) if example != each][:count]
        if len(drawn) < count:
            others = [example for example in pool if example != each]
            if len(others) < count:
                raise DataError(f"only {len(others)} rows differ from one that is asked: {count} examples are wanted")
            drawn = random.sample(others, count)
        yield drawn


def prompt_of(examples: Sequence[str], prompt: str) -> str:
    """The prompt behind solved examples, a blank line after each."""
    return "".join(example + _DELIMITER for example in examples) + prompt
