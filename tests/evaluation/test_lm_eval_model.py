# SPDX-License-Identifier: Apache-2.0
"""Scores against lm_eval's own backend, request by request: of the real small model and of a random GPT-2."""

import json
import os
import shutil
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_core.checkpoint.huggingface.import_model import import_model, read_architecture
from megatron_core.evaluation.driven_model import DrivenModel
from megatron_core.evaluation.likelihood import joint_likelihoods
from megatron_core.evaluation.multiple_choice import estimate, read_task
from megatron_core.evaluation.task_rows import find_tasks, read_rows
from megatron_core.evaluation.text_encoder import TextEncoder
from megatron_core.inference.open_model import open_model
from megatron_core.parallel.context import ParallelContext
from tests.evaluation.lm_eval_tasks import write_task
from tests.evaluation.stories_tokenizer import BOS, write_tokenizer
from tests.rank_pool import ranks
from tests.small_model import ALONE

SHARED = Path(__file__).parents[3] / "shared" / "data"
LIMIT = 5

pytest.importorskip("lm_eval", reason="the extra eval is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SHARED.exists(), reason="models and rows lie outside of the repository"),
]
MADE_UP: dict[str, list[dict[str, Any]]] = {
    "anli_r1": [{"premise": f"P {k} is so.", "hypothesis": "Q.", "label": k % 3, "reason": ""} for k in range(8)],
    "wic": [
        {"word": "way", "sentence1": f"{k} ways.", "sentence2": "A way.", "start1": 2, "end1": 6, "label": k % 2}
        for k in range(8)
    ],
    "race": [
        {
            "article": f"It was {k}.",
            "problems": str(
                [
                    {"question": "Who?", "options": ["a", "b c", "d", "e"], "answer": "B"},
                    {"question": "It is  _  .", "options": ["a", "b", "c d", "e"], "answer": "C"},
                    {"question": f"What is {k}?", "options": ["1", "2", "3", "4 5"], "answer": "D"},
                ]
            ),
        }
        for k in range(8)
    ],
}
"""Rows in the form of the sets that may not be shipped."""
TASKS = ("lambada", "hellaswag", "boolq", "piqa", "winogrande", "hans", *MADE_UP)


@dataclass(frozen=True)
class Models:
    """The same weights and tokenizer for both programs."""

    theirs: Path
    ours: Path
    bos: int | None
    """As transformers' tokenizer puts it before every text."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With rows of all tasks, and YAML files that have lm_eval read them."""
    folder = tmp_path_factory.mktemp("lm_eval")
    stay_offline(str(folder))
    for name in TASKS:
        rows = MADE_UP.get(name) or real_rows(name)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        write_task(folder, name, folder / f"{name}.jsonl")
    return folder


def stay_offline(folder: str) -> None:
    for name, value in (("HF_HUB_OFFLINE", "1"), ("HF_DATASETS_OFFLINE", "1"), ("HF_DATASETS_CACHE", folder)):
        os.environ[name] = value


def real_rows(name: str) -> list[dict[str, Any]]:
    """The first of a set, for lm_eval is slow to take in whole ones."""
    (file,) = find_tasks([name], SHARED / "eval")
    return [row for _, row in islice(read_rows(file.path, dict), 30)]


@pytest.fixture(scope="module", params=["stories", "gpt2"])
def models(request: pytest.FixtureRequest, folder: Path) -> Models:
    from transformers import GPT2Config, GPT2LMHeadModel

    theirs, ours = folder / request.param, folder / f"{request.param}-run"
    if request.param == "stories":
        shutil.copytree(SHARED / "models" / "stories260K-hf", theirs)
        write_tokenizer(theirs / "tok512.json", theirs)
    else:
        torch.manual_seed(1)
        shutil.copytree(SHARED / "tokenizers" / "gpt2", theirs)
        config = GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=256, initializer_range=0.3)
        GPT2LMHeadModel(config).save_pretrained(theirs)
        write_gpt2_tokenizer(theirs)
    import_model(theirs, ours, read_architecture(theirs), report=lambda n: None)
    return Models(theirs, ours, BOS if request.param == "stories" else None)


def write_gpt2_tokenizer(folder: Path) -> None:
    names = {"tokenizer_class": "GPT2TokenizerFast", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


def their_model(models: Models) -> Any:
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(models.theirs), device="cpu", batch_size=4, dtype="float32")


def evaluate(model: Any, folder: Path, names: tuple[str, ...], shots: int) -> dict[str, Any]:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    found = simple_evaluate(
        model=model,
        tasks=[f"local_{name}" for name in names],
        num_fewshot=shots,
        limit=LIMIT,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )
    assert found is not None
    return found


@pytest.mark.parametrize("shots", [0, 1, 3])
def test_every_task_has_their_scores(models: Models, folder: Path, shots: int) -> None:
    opened = open_model(models.ours, ALONE)
    encoder = TextEncoder(opened.tokenizer, opened.model.config.seq_length, bos=models.bos)
    theirs = evaluate(their_model(models), folder, TASKS, shots)
    for name in TASKS:
        (file,) = find_tasks([f"{name}={folder / name}.jsonl"], None)
        asked = read_task(file, num_fewshot=shots, limit=LIMIT)
        found = joint_likelihoods(opened.model, encoder.pairs(asked.pairs))
        samples = sorted(theirs["samples"][f"local_{name}"], key=lambda sample: sample["doc_id"])
        expected = [answer[0] for sample in samples for answer in sample["resps"]]
        assert [each.log_probability for each in found] == pytest.approx([value for value, _ in expected], abs=1e-4)
        assert [each.greedy for each in found] == [greedy for _, greedy in expected]
        answers = iter(found)
        grouped = [[next(answers) for _ in question.choices] for question in asked.questions]
        for metric in asked.task.metrics:
            score = theirs["results"][f"local_{name}"][f"{metric},none"]
            assert estimate(metric, asked.questions, grouped).value == pytest.approx(score, rel=1e-4), (name, metric)


def ask(ctx: ParallelContext, ours: str, bos: int | None, folder: str) -> dict[str, Any] | None:
    """All kinds of requests through the adapter; None on the ranks that follow."""
    from megatron_core.evaluation.lm_eval_model import LMEvalModel

    stay_offline(folder)
    opened = open_model(Path(ours), ctx)
    driven = DrivenModel(opened.model, TextEncoder(opened.tokenizer, opened.model.config.seq_length, bos=bos))
    if ctx.rank > 0:
        driven.follow()
        return None
    with driven:
        return answers_of(LMEvalModel(driven), Path(folder))


TEXTS = ("Once upon a time, there was a little girl named Lily. She loved to play outside in the park. " * 12, "A cat.")
GENERATE = ({"until": ["."], "max_gen_toks": 20}, {"until": ["\n\n"], "max_gen_toks": 12, "do_sample": False})


def answers_of(model: Any, folder: Path) -> dict[str, Any]:
    """What a model of lm_eval gives to each kind of request, and the scores of two tasks."""
    from lm_eval.api.instance import Instance

    def requests(kind: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return [Instance(request_type=kind, doc={}, arguments=each, idx=0) for each in arguments]

    prompts = ["Once upon a time", "The cat was very big and"]
    results = evaluate(model, folder, ("piqa", "lambada"), 1)["results"]
    names = ("local_piqa/acc", "local_piqa/acc_norm", "local_lambada/acc", "local_lambada/perplexity")
    ((empty, greedy),) = model.loglikelihood(requests("loglikelihood", [("", "The end")]))
    return {
        "numbers": [*(results[name.split("/")[0]][f"{name.split('/')[1]},none"] for name in names), empty],
        "greedy": greedy,
        "texts": model.loglikelihood_rolling(requests("loglikelihood_rolling", [(text,) for text in TEXTS])),
        "written": model.generate_until(
            requests("generate_until", [(prompt, dict(how)) for how in GENERATE for prompt in prompts])
        ),
    }


def test_the_adapter_answers_as_their_backend(models: Models, folder: Path) -> None:
    theirs = answers_of(their_model(models), folder)
    found = ask(ALONE, str(models.ours), models.bos, str(folder))
    assert found is not None
    assert found["numbers"] == pytest.approx(theirs["numbers"], rel=1e-4)
    assert (found["written"], found["greedy"]) == (theirs["written"], theirs["greedy"])
    if models.bos is None:  # theirs scores the id before a text too, behind itself
        assert found["texts"] == pytest.approx(theirs["texts"], rel=1e-4)


@ranks({"tp": 2, "pp": 2}, {"dp": 2}, timeout=100)
def asked_on_ranks(ctx: ParallelContext, ours: str, bos: int | None, folder: str, expected: dict[str, Any]) -> None:
    found = ask(ctx, ours, bos, folder)
    if found is not None:
        assert found["numbers"] == pytest.approx(expected["numbers"], rel=1e-4)
        assert found["texts"] == pytest.approx(expected["texts"], rel=1e-4)
        assert (found["written"], found["greedy"]) == (expected["written"], expected["greedy"])


def test_the_adapter_at_other_layouts(models: Models, folder: Path) -> None:
    expected = ask(ALONE, str(models.ours), models.bos, str(folder))
    for layout in ({"tp": 2, "pp": 2}, {"dp": 2}):
        asked_on_ranks(layout, ours=str(models.ours), bos=models.bos, folder=str(folder), expected=expected)
