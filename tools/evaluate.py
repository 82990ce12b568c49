#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Score a trained model: MT-NLG's tasks with 0, 1 or more examples, perplexity, and the tasks of lm_eval.

    tools/evaluate.py RUN --tasks lambada,piqa,winogrande --data DATA --num-fewshot 1 --output results.json
    tools/evaluate.py RUN/step_00010000 --perplexity wiki.txt --stride 256
    torchrun --nproc-per-node 4 tools/evaluate.py RUN --tensor-model-parallel-size 2 \\
        --pipeline-model-parallel-size 2 --tasks hellaswag=hellaswag_val.jsonl --limit 1000

Files are local: DATA/piqa/validation.jsonl and the like (.gz too), or a file for each task, NAME=FILE. Prompts,
few-shot examples and scores are lm_eval's. The layout changes no score. Exit code: 0 done, 2 bad input, 130
interrupted.
"""

import argparse
import dataclasses
import functools
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_core.errors import ConfigError, DataError
from megatron_core.evaluation.documents import read_documents
from megatron_core.evaluation.driven_model import DrivenModel
from megatron_core.evaluation.likelihood import BATCH_TOKENS
from megatron_core.evaluation.multiple_choice import encode_task, read_task, score_task
from megatron_core.evaluation.perplexity import Document, perplexity, slide
from megatron_core.evaluation.tails import Tail
from megatron_core.evaluation.task_rows import find_tasks
from megatron_core.evaluation.tasks.table import TASKS
from megatron_core.evaluation.text_encoder import TextEncoder
from megatron_core.inference.open_model import OpenModel, open_model
from megatron_core.parallel.context import ParallelContext
from megatron_core.training.progress import score_text
from pretrain_gpt import leave
from tools.lm_eval_tasks import require_lm_eval, score_lm_eval_tasks
from tools.model_ranks import add_layout_flags, run_on_ranks
from tools.text_table import text_table
from tools.token_progress import TokenProgress

DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")}
PERPLEXITIES = ("per_token", "per_byte", "per_word", "bits_per_byte")


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Flags."""
    parser = argparse.ArgumentParser(
        prog="tools/evaluate.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="a step_* directory, or a run's --save directory")
    add("--tasks", default="", metavar="NAME[=FILE],...", help=f"of {', '.join(TASKS)}")
    add("--data", type=Path, metavar="DATA", help="directory of the tasks that are given without a file")
    add("--num-fewshot", type=int, default=0, metavar="N", help="solved examples before each question (default: 0)")
    add("--limit", type=int, metavar="N", help="only the first N questions of each task, or documents")
    add("--perplexity", type=Path, metavar="FILE", help=".txt, .jsonl (a text a row) or the prefix of a .bin and .idx")
    add("--stride", type=int, metavar="T", help="tokens that the window of --perplexity moves by; default: half of it")
    add("--lm-eval-tasks", default="", metavar="NAME,...", help="tasks of lm_eval's library, with its own data")
    add("--lm-eval-include", type=Path, metavar="DIR", help="further tasks for lm_eval: a directory of YAML files")
    add("--max-length", type=int, metavar="S", help="tokens that the model reads at once; default: as in training")
    add("--bos-id", type=int, help="an id before every text, for models trained so (Llama's is 1)")
    add("--tokenizer-model", help="where the tokenizer's files are now, if not where training had them")
    add("--dtype", choices=DTYPES, help="of weights and activations; default: as stored")
    add("--batch-tokens", type=int, default=BATCH_TOKENS, metavar="N", help=f"in one forward (default: {BATCH_TOKENS})")
    add("--output", type=Path, metavar="RESULTS", help="write all numbers there as JSON")
    add_layout_flags(parser)
    return parser.parse_args(list(words))


def check(arguments: argparse.Namespace) -> None:
    """Raises ConfigError for numbers and names that mean nothing, before anything takes time."""
    if not arguments.tasks and not arguments.lm_eval_tasks and arguments.perplexity is None:
        raise ConfigError("nothing to do: give --tasks, --perplexity or --lm-eval-tasks")
    if arguments.lm_eval_tasks:
        require_lm_eval()
    for name, least in (("num_fewshot", 0), ("limit", 1), ("stride", 1), ("max_length", 1), ("batch_tokens", 1)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}")
    output: Path | None = arguments.output
    if output is not None and (output.is_dir() or not os.access(output.absolute().parent, os.W_OK)):
        raise ConfigError(f"--output {output} cannot be written: name a file in a directory that can")


def context_of(arguments: argparse.Namespace, opened: OpenModel) -> int:
    """Tokens that the model reads at once. Raises ConfigError for more than it can."""
    config = opened.model.config
    length: int = arguments.max_length or config.seq_length
    if config.position_embedding_type == "learned_absolute" and length > config.max_position_embeddings:
        raise ConfigError(f"--max-length is {length}, but the model has {config.max_position_embeddings} positions")
    return length


def run(arguments: argparse.Namespace, ctx: ParallelContext) -> None:
    """Score on all ranks; rank 0 shows. Raises UserError, the same on every rank."""
    check(arguments)
    asked = [
        read_task(file, num_fewshot=arguments.num_fewshot, limit=arguments.limit)
        for file in find_tasks(_words(arguments.tasks), arguments.data)
    ]
    opened = open_model(
        arguments.checkpoint, ctx, dtype=DTYPES.get(arguments.dtype), tokenizer_model=arguments.tokenizer_model
    )
    encoder = TextEncoder(opened.tokenizer, context_of(arguments, opened), bos=arguments.bos_id)
    results: dict[str, Any] = {
        "checkpoint": str(arguments.checkpoint.absolute()),
        "step": opened.manifest.step,
        "dtype": str(opened.model.dtype).removeprefix("torch."),
        "context": encoder.context_length,
    }
    # All is read and encoded before anything is scored: what is wrong with the last file need not wait for the others.
    tasks = [encode_task(each, encoder) for each in asked]
    documents, windows = _documents(arguments, encoder)
    report = functools.partial(TokenProgress, speaks=ctx.rank == 0)
    scores = []
    for task in tasks:
        with report(task.asked.task.name, task.tokens) as progress:
            scores.append(score_task(opened.model, task, progress, batch_tokens=arguments.batch_tokens))
    if scores:
        results["tasks"] = {each.name: dataclasses.asdict(each) for each in scores}
    if windows:
        with report("perplexity", sum(len(window.tokens) for window in windows)) as progress:
            found = perplexity(opened.model, documents, windows, progress, batch_tokens=arguments.batch_tokens)
        results["perplexity"] = {"path": str(arguments.perplexity), "stride": _stride(arguments, encoder)}
        results["perplexity"] |= dataclasses.asdict(found) | {name: getattr(found, name) for name in PERPLEXITIES}
    if arguments.lm_eval_tasks:
        results["lm_eval"] = _lm_eval(
            arguments, DrivenModel(opened.model, encoder, batch_tokens=arguments.batch_tokens)
        )
    if ctx.rank == 0:
        show(results)
        if arguments.output is not None:
            write(results, arguments.output)


def _lm_eval(arguments: argparse.Namespace, driven: DrivenModel) -> dict[str, dict[str, float]]:
    """Numbers on rank 0; the other ranks follow it."""
    if driven.rank > 0:
        driven.follow()
        return {}
    return score_lm_eval_tasks(
        driven,
        _words(arguments.lm_eval_tasks),
        arguments.lm_eval_include,
        num_fewshot=arguments.num_fewshot,
        limit=arguments.limit,
    )


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _documents(arguments: argparse.Namespace, encoder: TextEncoder) -> tuple[list[Document], list[Tail]]:
    """What --perplexity is asked of, and its windows; nothing without that flag."""
    if arguments.perplexity is None:
        return [], []
    stride = _stride(arguments, encoder)
    if stride > encoder.context_length:
        raise ConfigError(
            f"--stride is {stride}, more than the {encoder.context_length} tokens of a window: tokens would be left out"
        )
    documents = read_documents(arguments.perplexity, encoder.tokenizer, arguments.limit)
    windows = slide(documents, encoder.prefix, context=encoder.context_length, stride=stride)
    if not windows:
        raise DataError(f"--perplexity {arguments.perplexity} holds no token that could be scored")
    return documents, windows


def _stride(arguments: argparse.Namespace, encoder: TextEncoder) -> int:
    return arguments.stride or max(encoder.context_length // 2, 1)


def show(results: Mapping[str, Any]) -> None:
    """Tables of all numbers."""
    print(f"{results['checkpoint']}, step {results['step']}, {results['dtype']}, context {results['context']}")
    rows = [
        [name, TASKS[name].area, f"{each['questions']:,}", str(each["num_fewshot"]), metric, *_shown(value)]
        for name, each in results.get("tasks", {}).items()
        for metric, value in each["metrics"].items()
    ]
    if rows:
        header = ["task", "area", "questions", "shots", "metric", "value", "+-"]
        print("\n".join(text_table(header, rows, right=("questions", "shots", "value", "+-"))))
    for name, metrics in results.get("lm_eval", {}).items():
        print(f"lm_eval {name}: " + ", ".join(f"{metric} {value:.4f}" for metric, value in metrics.items()))
    if found := results.get("perplexity"):
        print(
            f"perplexity of {found['path']}: {score_text(found['per_token'])} a token, "
            f"{score_text(found['per_word'])} a word, {score_text(found['per_byte'])} a byte "
            f"({found['bits_per_byte']:.4f} bits a byte); {found['tokens']:,} tokens, {found['words']:,} words, "
            f"{found['bytes']:,} bytes, {found['documents']:,} documents, stride {found['stride']}"
        )


def _shown(estimate: Mapping[str, float]) -> list[str]:
    error = estimate["standard_error"]
    return [score_text(estimate["value"]), "" if math.isnan(error) else score_text(error)]


def write(results: Mapping[str, Any], output: Path) -> None:
    """As JSON, which has no NaN or infinity: they are null."""
    text = json.dumps(_finite(results), indent=2, ensure_ascii=False)
    unfinished = output.with_name(f"{output.name}.unfinished")
    unfinished.write_text(text + "\n", encoding="utf-8")
    os.replace(unfinished, output)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main(words: Sequence[str]) -> int:
    """Exit code of this rank."""
    arguments = parse_arguments(words)
    return run_on_ranks(arguments, lambda ctx: run(arguments, ctx))


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))
