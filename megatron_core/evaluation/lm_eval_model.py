# SPDX-License-Identifier: Apache-2.0
"""Our model as one of lm_eval's (EleutherAI's language model evaluation harness), so that its task library works.

    lm = LMEvalModel(DrivenModel(opened.model, TextEncoder(opened.tokenizer, opened.model.config.seq_length)))
    with lm.driven: lm_eval.simple_evaluate(model=lm, tasks=["arc_easy"])        on rank 0
    lm.driven.follow()                                                           on the others

Needs the extra `eval`; nothing else here imports lm_eval.
"""

from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs

from megatron_core.errors import ConfigError
from megatron_core.evaluation.driven_model import Continuation, DrivenModel
from megatron_core.inference.sampling import Sampling

_SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty")
_NO_SAMPLING = ("do_sample", "until", "max_gen_toks")


class LMEvalModel(LM):
    """Answers lm_eval on rank 0."""

    def __init__(self, driven: DrivenModel) -> None:
        super().__init__()
        self.driven = driven

    def loglikelihood(self, requests: Sequence[Instance]) -> list[tuple[float, bool]]:
        """(log-probability, whether greedy) of each request's (context, continuation)."""
        found = self.driven.pairs([request.args for request in requests])
        answers = [(each.log_probability, each.greedy) for each in found]
        self._keep("loglikelihood", requests, answers)
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:
        """The log-probability of each request's text."""
        answers = self.driven.texts([text for (text,) in (request.args for request in requests)])
        self._keep("loglikelihood_rolling", requests, answers)
        return answers

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        """What follows each request's context, up to one of its stop texts. Raises ConfigError for unknown settings."""
        answers = [""] * len(requests)
        wanted = [_continuation(request.args[1]) for request in requests]
        for how in dict.fromkeys(map(repr, wanted)):
            numbers = [number for number, each in enumerate(wanted) if repr(each) == how]
            prompts = [requests[number].args[0] for number in numbers]
            for number, text in zip(numbers, self.driven.continuations(prompts, wanted[numbers[0]])):
                answers[number] = text
        self._keep("generate_until", requests, answers)
        return answers

    def _keep(self, kind: str, requests: Sequence[Instance], answers: Sequence[Any]) -> None:
        """For lm_eval's cache of answers, where there is one."""
        for request, answer in zip(requests, answers):
            self.cache_hook.add_partial(kind, request.args, answer)


def _continuation(asked: dict[str, Any]) -> Continuation:
    settings = dict(normalize_gen_kwargs(asked))
    if unknown := sorted(set(settings) - {*_SAMPLING, *_NO_SAMPLING}):
        raise ConfigError(f"a task asks to generate with {', '.join(unknown)}, which is not known here")
    sampling = {name: settings[name] for name in _SAMPLING if settings.get(name) is not None}
    if not settings["do_sample"]:
        sampling["temperature"] = 0.0
    return Continuation(
        max_new_tokens=settings["max_gen_toks"],
        stops=tuple(stop for stop in settings["until"] if stop),
        sampling=Sampling(**sampling),
    )
