#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Continue texts with a trained model, at any layout whatever that of training was.

    tools/generate.py RUN --prompt "Once upon a time" --max-new-tokens 100
    torchrun --nproc-per-node 4 tools/generate.py RUN/step_00010000 --tensor-model-parallel-size 2 \\
        --pipeline-model-parallel-size 2 --prompts-file prompts.jsonl --greedy --output texts.jsonl

One prompt is shown as it grows; of several each is shown when all are done. Layout, ranks and what else is in a batch
change nothing in what is generated. Exit code: 0 done, 2 bad input, 130 interrupted.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_core.checkpoint.agree import from_rank_0
from megatron_core.data.tokenizer import Tokenizer
from megatron_core.errors import ConfigError, DataError
from megatron_core.inference.generate import Generated, GenerationSettings, generate
from megatron_core.inference.open_model import OpenModel, open_model
from megatron_core.inference.sampling import Sampling
from megatron_core.inference.streamed_text import StreamedText, text_after
from megatron_core.parallel.context import ParallelContext
from pretrain_gpt import leave
from tools.model_ranks import add_layout_flags, run_on_ranks
from tools.token_progress import TokenProgress

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Flags, with the numbers of sampling under the names that transformers has for them."""
    parser = argparse.ArgumentParser(
        prog="tools/generate.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="a step_* directory, or a run's --save directory")
    add("--prompt", action="append", metavar="TEXT", help="a text to continue; may be given several times")
    add("--prompts-file", type=Path, help=".txt: a prompt a line; .jsonl: objects with a text under `prompt`")
    add("--max-new-tokens", type=int, default=128, help="tokens after each prompt, at most (default: 128)")
    add("--temperature", type=float, default=1.0, help="divides the logits; 0: greedy (default: 1)")
    add("--greedy", action="store_true", help="always the likeliest token: --temperature 0")
    add("--top-k", type=int, help="draw from the k likeliest tokens only")
    add("--top-p", type=float, help="draw from the likeliest tokens of this joint probability only")
    add("--repetition-penalty", type=float, default=1.0, help="above 1: what was there before is less likely")
    add("--seed", type=int, default=1234, help="of the draws (default: 1234)")
    add("--batch-size", type=int, default=32, help="prompts that go through the model at once (default: 32)")
    add("--bos-id", type=int, help="an id before every prompt, for models trained so (Llama's is 1)")
    add("--end-id", type=int, action="append", help="a further id that ends a text, beside the end of a document")
    add("--ignore-end", action="store_true", help="go on after the end of a document, up to --max-new-tokens")
    add("--tokenizer-model", help="where the tokenizer's files are now, if not where training had them")
    add("--dtype", choices=DTYPES, help="of weights and activations; default: as stored")
    add("--output", type=Path, help="write JSON lines (prompt, text, tokens, log_probabilities, stopped) there instead")
    add_layout_flags(parser)
    return parser.parse_args(list(words))


def settings_of(arguments: argparse.Namespace, end_of_document: int | None) -> GenerationSettings:
    """What the flags ask for. Raises ConfigError."""
    ends = set(arguments.end_id or [])
    if end_of_document is not None:
        ends.add(end_of_document)
    sampling = Sampling(
        temperature=0.0 if arguments.greedy else arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        repetition_penalty=arguments.repetition_penalty,
        seed=arguments.seed,
    )
    return GenerationSettings(
        max_new_tokens=arguments.max_new_tokens,
        sampling=sampling,
        end_ids=frozenset() if arguments.ignore_end else frozenset(ends),
        batch_size=arguments.batch_size,
    )


def read_prompts(arguments: argparse.Namespace) -> list[str]:
    """The texts to continue. Raises ConfigError where there are none, DataError for a file that holds other things."""
    if arguments.prompt and arguments.prompts_file:
        raise ConfigError("--prompt and --prompts-file exclude each other: choose one")
    if arguments.prompt:
        return list(arguments.prompt)
    path: Path | None = arguments.prompts_file
    if path is None and sys.stdin.isatty():
        raise ConfigError("no prompt: give --prompt, --prompts-file, or lines on standard input")
    try:
        text = sys.stdin.read() if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path or 'standard input'} cannot be read: {error}") from None
    lines = text.splitlines() if path is None or path.suffix != ".jsonl" else _json_prompts(path, text)
    if not lines:
        raise ConfigError(f"{path or 'standard input'} holds no prompt")
    return lines


def _json_prompts(path: Path, text: str) -> list[str]:
    prompts = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, TypeError, KeyError):
            prompt = None
        if not isinstance(prompt, str):
            raise DataError(f'{path}, line {number}: not a JSON object with a text under "prompt"')
        prompts.append(prompt)
    return prompts


def encode(prompts: Sequence[str], tokenizer: Tokenizer, bos: int | None) -> list[list[int]]:
    """Ids of each prompt. Raises ConfigError for one without any."""
    start = [] if bos is None else [bos]
    ids = [start + tokenizer.encode(prompt).tolist() for prompt in prompts]
    for number, row in enumerate(ids):
        if not row:
            raise ConfigError(f"prompt {number} is empty: give a text, or --bos-id for the id that begins one")
    return ids


def run(arguments: argparse.Namespace, ctx: ParallelContext) -> None:
    """Generate on all ranks; rank 0 reads and shows. Raises UserError, the same on every rank."""
    settings_of(arguments, None)  # numbers first, before anything takes time
    prompts = _from_rank_0(lambda: _checked(arguments, read_prompts(arguments)), ctx)
    opened = open_model(
        arguments.checkpoint,
        ctx,
        dtype=DTYPES.get(arguments.dtype),
        tokenizer_model=arguments.tokenizer_model,
    )
    # Only rank 0 needs the tokenizer's files.
    end, ids = _from_rank_0(lambda: [opened.tokenizer.eod, encode(prompts, opened.tokenizer, arguments.bos_id)], ctx)
    settings = settings_of(arguments, end)
    started = time.monotonic()
    if ctx.rank != 0:
        generate(opened.model, ids, settings)
    elif len(ids) == 1 and arguments.output is None:
        found = _streamed(opened, prompts[0], ids[0], settings)
    else:
        rows = -(-len(ids) // ctx.dp.size)  # of this replica
        with TokenProgress("generating at most", rows * settings.max_new_tokens) as progress:
            found = generate(opened.model, ids, settings, on_tokens=lambda _, tokens: progress(len(tokens)))
        texts = [_text(opened, prompt, row, settings) for prompt, row in zip(ids, found)]
        _write(arguments.output, prompts, found, texts)
    if ctx.rank == 0:
        count, seconds = sum(len(row.tokens) for row in found), time.monotonic() - started
        print(f"{count} tokens in {seconds:.1f} s", file=sys.stderr)


def _from_rank_0(make: Callable[[], object], ctx: ParallelContext) -> list:
    value: list = json.loads(from_rank_0(lambda: json.dumps(make()).encode(), ctx))
    return value


def _checked(arguments: argparse.Namespace, prompts: list[str]) -> list[str]:
    """The prompts, once it is known that what becomes of them can be written."""
    output: Path | None = arguments.output
    if output is not None and (output.is_dir() or not os.access(output.absolute().parent, os.W_OK)):
        raise ConfigError(f"--output {output} cannot be written: name a file in a directory that can")
    return prompts


def _streamed(opened: OpenModel, prompt: str, ids: Sequence[int], settings: GenerationSettings) -> list[Generated]:
    """Generate for one prompt and show each character as soon as it is whole."""
    stream = StreamedText(opened.tokenizer, ids)

    def show(_: Sequence[int], tokens: Sequence[int]) -> None:
        print(stream.add([token for token in tokens if token not in settings.end_ids]), end="", flush=True)

    print(prompt, end="", flush=True)
    found = generate(opened.model, [ids], settings, on_tokens=show)
    print(stream.rest(), flush=True)
    return found


def _text(opened: OpenModel, prompt: Sequence[int], found: Generated, settings: GenerationSettings) -> str:
    """Without the end id, which is no text."""
    return text_after(opened.tokenizer, prompt, [token for token in found.tokens if token not in settings.end_ids])


def _write(output: Path | None, prompts: Sequence[str], found: Sequence[Generated], texts: Sequence[str]) -> None:
    """All of it into the file, if there is one, else as text to standard output."""
    if output is not None:
        lines = [
            json.dumps({"prompt": prompt, "text": text, **vars(row)}, ensure_ascii=False)
            for prompt, text, row in zip(prompts, texts, found)
        ]
        unfinished = output.with_name(f"{output.name}.unfinished")
        unfinished.write_text("\n".join([*lines, ""]), encoding="utf-8")
        os.replace(unfinished, output)
    else:
        for number, (prompt, text) in enumerate(zip(prompts, texts)):
            print(f"== {number}\n{prompt}{text}")


def main(words: Sequence[str]) -> int:
    """Exit code of this rank."""
    arguments = parse_arguments(words)
    return run_on_ranks(arguments, lambda ctx: run(arguments, ctx))


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))
