# SPDX-License-Identifier: Apache-2.0
"""A model on many ranks that rank 0 alone asks: the others follow, request by request.

A harness with loops, files and progress bars of its own runs on one rank. Every request of it goes to all ranks as
JSON, and all answer it together.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

import orjson

from megatron_core.checkpoint.agree import from_rank_0
from megatron_core.errors import ConfigError, UserError
from megatron_core.evaluation.likelihood import BATCH_TOKENS, Likelihood, joint_likelihoods
from megatron_core.evaluation.tails import windows
from megatron_core.evaluation.text_encoder import TextEncoder
from megatron_core.inference.generate import GenerationSettings, generate
from megatron_core.inference.model import InferenceModel
from megatron_core.inference.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """How to go on with prompts."""

    max_new_tokens: int
    stops: Sequence[str] = ()
    """Texts before the first of which an answer ends."""
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0))


class DrivenModel:
    """On rank 0 ask within `with`, on the others call `follow`. Without others there is no need to close."""

    def __init__(self, model: InferenceModel, encoder: TextEncoder, *, batch_tokens: int = BATCH_TOKENS) -> None:
        self._model, self.encoder, self._batch_tokens = model, encoder, batch_tokens

    @property
    def rank(self) -> int:
        """Of this process; 0 asks."""
        return self._model.ctx.rank

    def __enter__(self) -> "DrivenModel":
        assert self.rank == 0, "rank 0 asks, the others follow"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):  # an interruption may have come within a collective
            self._tell({"ask": "end"})

    def follow(self) -> None:
        """Answer with rank 0 until it has no more requests. What cannot be answered is rank 0's to tell of."""
        while (request := self._tell({}))["ask"] != "end":
            with contextlib.suppress(UserError):  # rank 0 has met the same, and may ask on
                self._answer(request)

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """Each continuation behind its prompt. Raises DataError as `TextEncoder.pairs`."""
        found: list[Likelihood] = self._answer(self._tell({"ask": "pairs", "pairs": pairs}))
        return found

    def texts(self, texts: Sequence[str]) -> list[float]:
        """The log-probability of each whole text, in windows that overlap only where the last one would be short."""
        found: list[float] = self._answer(self._tell({"ask": "texts", "texts": texts}))
        return found

    def continuations(self, prompts: Sequence[str], how: Continuation) -> list[str]:
        """What the model writes behind each prompt, of which the end is kept where not all of it fits.

        Raises ConfigError where the model has no room for a prompt beside what is to be written.
        """
        request = {"ask": "continuations", "prompts": prompts, "how": asdict(how)}
        found: list[str] = self._answer(self._tell(request))
        return found

    def _tell(self, request: dict[str, Any]) -> dict[str, Any]:
        """The request of rank 0, on every rank."""
        told: dict[str, Any] = orjson.loads(from_rank_0(lambda: orjson.dumps(request), self._model.ctx))
        return told

    def _answer(self, request: dict[str, Any]) -> Any:
        if request["ask"] == "pairs":
            tails = self.encoder.pairs(request["pairs"])
            return joint_likelihoods(self._model, tails, batch_tokens=self._batch_tokens)
        if request["ask"] == "texts":
            return self._score_texts(request["texts"])
        how = Continuation(**request["how"] | {"sampling": Sampling(**request["how"]["sampling"])})
        return self._continue(request["prompts"], how)

    def _score_texts(self, texts: Sequence[str]) -> list[float]:
        context = self.encoder.context_length
        tails = [
            list(windows(self.encoder.prefix + ids.tolist(), 1, context=context, stride=context))
            for ids in self.encoder.tokenizer.encode_batch(texts)
        ]
        found = joint_likelihoods(self._model, tails, batch_tokens=self._batch_tokens)
        return [each.log_probability for each in found]

    def _continue(self, prompts: Sequence[str], how: Continuation) -> list[str]:
        tokenizer = self.encoder.tokenizer
        room = self.encoder.context_length - how.max_new_tokens
        if room < 1:
            raise ConfigError(
                f"{how.max_new_tokens} tokens are to be written, but the model reads {self.encoder.context_length}: "
                "nothing of a prompt fits beside them"
            )
        settings = GenerationSettings(
            max_new_tokens=how.max_new_tokens,
            sampling=how.sampling,
            end_ids=frozenset() if tokenizer.eod is None else frozenset({tokenizer.eod}),
        )
        found = generate(
            self._model,
            [ids[-room:] for ids in self.encoder.prompts(prompts)],
            settings,
            until=lambda tokens: any(stop in tokenizer.decode(tokens) for stop in how.stops),
        )
        texts = [tokenizer.decode([token for token in row.tokens if token != tokenizer.eod]) for row in found]
        return [min((text.partition(stop)[0] for stop in how.stops), key=len, default=text) for text in texts]
