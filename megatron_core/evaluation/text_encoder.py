# SPDX-License-Identifier: Apache-2.0
"""Pairs of texts -> tokens to score, cut where lm_eval cuts them.

A tokenizer may join the end of a prompt and the start of its continuation, so both are encoded together, and what is
beyond the prompt's own tokens is the continuation. Spaces at the end of a prompt belong to the continuation. What does
not fit into the model is left out from the left.
"""

from collections.abc import Sequence

from megatron_core.data.tokenizer import Tokenizer
from megatron_core.errors import DataError
from megatron_core.evaluation.tails import Tail, windows


class TextEncoder:
    """A tokenizer with the start of a text and the length of the model."""

    def __init__(self, tokenizer: Tokenizer, context_length: int, *, bos: int | None = None) -> None:
        """context_length: the most tokens s that the model reads at once. bos: an id that begins every text, for models
        that were trained so (Llama's is 1); None: nothing does.

        Raises DataError where the vocabulary has no such id.
        """
        if bos is not None and not 0 <= bos < tokenizer.vocab_size:
            raise DataError(f"a text cannot begin with id {bos}: the tokenizer has {tokenizer.vocab_size} ids")
        self.tokenizer, self.context_length, self.bos = tokenizer, context_length, bos

    @property
    def prefix(self) -> list[int]:
        """What stands before the first token of a text: bos, else the end of the document before; [] without both."""
        start = self.tokenizer.eod if self.bos is None else self.bos
        return [] if start is None else [start]

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> list[list[Tail]]:
        """The continuation of each (prompt, continuation), scored behind its prompt: in one tail, if it fits.

        Raises DataError for a continuation without tokens.
        """
        moved = [_without_space_at_the_end(prompt, continuation) for prompt, continuation in pairs]
        prompts = self._encoded([prompt for prompt, _ in moved])
        wholes = self._encoded([prompt + continuation for prompt, continuation in moved])
        return [self._tails(prompt, whole, pair) for prompt, whole, pair in zip(prompts, wholes, moved)]

    def prompts(self, prompts: Sequence[str]) -> list[list[int]]:
        """Tokens of texts to be continued. Raises DataError for an empty one that nothing can stand before."""
        found = [
            ([] if self.bos is None else [self.bos]) + ids if ids else self.prefix for ids in self._encoded(prompts)
        ]
        if not all(found):
            raise DataError("an empty prompt cannot be continued: the tokenizer has no end of document to begin with")
        return found

    def _tails(self, prompt: list[int], whole: list[int], pair: tuple[str, str]) -> list[Tail]:
        start = [] if self.bos is None else [self.bos]
        if not pair[0]:
            start = self.prefix
            if not start and len(whole) > 1:
                start, whole = whole[:1], whole[1:]  # the first token cannot be scored
        scored = len(whole) - len(prompt)
        if scored < 1 or not start + prompt:
            raise DataError(f"{pair[1]!r:.60} has no tokens of its own behind {pair[0][-40:]!r}: it cannot be scored")
        tokens, context = start + whole, self.context_length
        if scored > context:
            return list(windows(tokens, len(tokens) - scored, context=context, stride=max(context // 2, 1)))
        return [Tail(tokens[-(context + 1) :], scored)]

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids.tolist() for ids in self.tokenizer.encode_batch(texts)]


def _without_space_at_the_end(prompt: str, continuation: str) -> tuple[str, str]:
    kept = prompt.rstrip()
    return kept, prompt[len(kept) :] + continuation
