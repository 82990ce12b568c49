# SPDX-License-Identifier: Apache-2.0
"""The text of tokens as they come: characters may span tokens, and what a token says may depend on those before."""

from collections.abc import Sequence

from megatron_core.data.tokenizer import Tokenizer

_BROKEN = "\ufffd"


class StreamedText:
    """What follows one prompt, piece by piece."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer, self._tokens = tokenizer, list(prompt)
        self._begin = len(tokenizer.decode(self._tokens))
        self._shown = ""

    def add(self, tokens: Sequence[int]) -> str:
        """The text that can be shown now and could not before these tokens: whole characters alone."""
        self._tokens += tokens
        text = self._text()
        return self._show(text[: len(text.rstrip(_BROKEN))])

    def rest(self) -> str:
        """What was held back, now that nothing more will come."""
        return self._show(self._text())

    def _text(self) -> str:
        return self._tokenizer.decode(self._tokens)[self._begin :]

    def _show(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._shown += new
        return new


def text_after(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """The text of tokens behind a prompt. A tokenizer that drops the space before a first word keeps it here."""
    return tokenizer.decode([*prompt, *tokens])[len(tokenizer.decode(prompt)) :]
