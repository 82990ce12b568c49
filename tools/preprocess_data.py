#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turn text into the token files that training reads. Flags and output names are Megatron-LM's.

    tools/preprocess_data.py --input corpus.jsonl.zst --output-prefix data/corpus \\
        --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt --append-eod --workers 8

writes data/corpus_text_document.bin and .idx; train with --data-path data/corpus_text_document.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import get_args

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_core.config.data import DataConfig, TokenizerType
from megatron_core.data.corpus_encoder import EncodeJob, encoder_of
from megatron_core.data.corpus_files import find_inputs
from megatron_core.data.prepare import Progress as Done
from megatron_core.data.prepare import document_prefix, prepare
from tools.run_command import run_command

SHOWN_BAD_LINES = 20
WITHOUT_EFFECT = ("dataset_impl", "partitions", "keep_sequential_samples")


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Flags, in either spelling: --json-keys or --json_keys."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--input", nargs="+", required=True, help="files or glob patterns: .jsonl .json .txt (+ .gz .zst .xz), .parquet"
    )
    add("--output-prefix", required=True, help="writes PREFIX_KEY_document.bin and .idx")
    add("--json-keys", nargs="+", default=["text"], help="keys whose text is prepared, each into its own files")
    add("--append-eod", action="store_true", help="end each document with the tokenizer's end-of-document id")
    add("--split-text-on-blank-lines", action="store_true", help=".txt: a document a block, not a file")
    add("--on-bad-line", choices=["stop", "skip"], default="stop", help="what to do with lines that cannot be used")
    add("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    add("--log-interval", type=int, default=10000, help="documents between progress lines where there is no terminal")
    add("--tokenizer-type", required=True, choices=get_args(TokenizerType), help="each needs some of the next four")
    add("--tokenizer-model", help="tokenizer.json, its directory, or a sentencepiece .model")
    add("--vocab-file", help="vocab.json of GPT2BPETokenizer")
    add("--merge-file", help="merges.txt of GPT2BPETokenizer")
    add("--vocab-size", type=int, help="of NullTokenizer")
    add("--dataset-impl", choices=["mmap"], help="accepted, without effect")
    add("--partitions", type=int, help="accepted, without effect: --workers does it")
    add("--keep-sequential-samples", action="store_true", help="accepted, without effect: order is always kept")
    arguments = parser.parse_args([_dashed(word) for word in words])
    if arguments.workers < 1:
        parser.error(f"--workers {arguments.workers}: give at least 1")
    if len(set(arguments.json_keys)) < len(arguments.json_keys):
        parser.error(f"--json-keys {' '.join(arguments.json_keys)}: each key once")
    return arguments


def _dashed(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word


class Reporter:
    """Bar on a terminal, lines elsewhere; the first bad lines in full."""

    def __init__(self, total_bytes: int, log_interval: int) -> None:
        self.console = Console(stderr=True)
        self.total_bytes = total_bytes
        self.log_interval = log_interval
        self.started = time.monotonic()
        self.next_line = log_interval
        self.shown_bad_lines = 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %"),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self.task = self.bar.add_task("reading", total=total_bytes)

    def __call__(self, done: Done, bad_lines: Sequence[str]) -> None:
        """Show where the work stands."""
        for line in bad_lines[: SHOWN_BAD_LINES - self.shown_bad_lines]:
            self.console.print(f"skipped {line}", markup=False, highlight=False, soft_wrap=True)
        self.shown_bad_lines = min(SHOWN_BAD_LINES, self.shown_bad_lines + len(bad_lines))
        self.bar.update(self.task, completed=done.bytes_read, description=self.rates(done))
        if done.documents >= self.next_line and not self.console.is_terminal:
            self.next_line = done.documents + self.log_interval
            seconds = time.monotonic() - self.started
            left = seconds * (self.total_bytes / max(done.bytes_read, 1) - 1)
            self.console.print(f"{self.rates(done)}, about {left:.0f} s left", highlight=False, soft_wrap=True)

    def rates(self, done: Done) -> str:
        """Counts and speeds."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        return (
            f"{done.documents:,} documents, {done.tokens / 1e6:,.2f} M tokens, "
            f"{done.text_bytes / seconds / 1e6:.1f} MB/s, {done.tokens / seconds / 1e6:.2f} M tokens/s"
        )


def run(arguments: argparse.Namespace) -> None:
    """Prepare the corpus. Raises UserError for whatever the user can mend."""
    tokenizer_config = DataConfig(
        tokenizer_type=arguments.tokenizer_type,
        tokenizer_model=arguments.tokenizer_model,
        vocab_file=arguments.vocab_file,
        merge_file=arguments.merge_file,
    )
    paths = find_inputs(arguments.input)
    reporter = Reporter(sum(path.stat().st_size for path in paths), arguments.log_interval)
    say = reporter.console.print
    for name in WITHOUT_EFFECT:
        if getattr(arguments, name):
            say(f"--{name.replace('_', '-')} has no effect here")
    job = EncodeJob(
        tokenizer=tokenizer_config,
        vocab_size=arguments.vocab_size,
        keys=tuple(arguments.json_keys),
        append_eod=arguments.append_eod,
    )
    encoder = encoder_of(job)
    say(
        f"{len(paths)} files, encoder {encoder.tokenizer.encoder}, vocabulary {encoder.tokenizer.vocab_size}, "
        f"tokens as {encoder.dtype.name}",
        highlight=False,
        soft_wrap=True,
    )
    with reporter.bar:
        done = prepare(
            paths,
            arguments.output_prefix,
            job,
            workers=arguments.workers,
            split_blank_lines=arguments.split_text_on_blank_lines,
            skip_bad_lines=arguments.on_bad_line == "skip",
            report=reporter,
        )
    print(reporter.rates(done))
    print(f"left out: {done.empty} empty documents, {done.bad_lines} bad lines")
    for key in arguments.json_keys:
        print(f"wrote {document_prefix(arguments.output_prefix, key)}.bin and .idx")


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 2 bad input, 130 interrupted."""
    arguments = parse_arguments(words)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    return run_command(lambda: run(arguments), interrupted="interrupted: nothing was written")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
