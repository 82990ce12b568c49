#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the demo reached: its last validation loss beside tables of letter pairs and triples, the curve, the files.

    tools/demo_summary.py --run runs/demo --train-text runs/demo/data/train.txt --valid-text runs/demo/data/valid.txt

The tables are counted on the training text and tested on the validation text, both as bytes. The probability of byte c
after a context is (count(context, c) + 1/2) / (count(context) + V/2), V the number of different bytes in the two texts.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_core.errors import DataError, UserError
from megatron_core.training.loss_plot import loss_plot
from megatron_core.training.metrics import read_metrics

PRIOR = 0.5
"""Added to every count: the expected share of each byte stays positive, and rare contexts lean on it."""


def table_loss(train: bytes, valid: bytes, order: int) -> float:
    """Mean -ln p of each byte of `valid` given the `order` - 1 bytes before it; order 2 is a table of pairs."""
    if min(len(train), len(valid)) < order:
        raise DataError(f"texts of {len(train)} and {len(valid)} bytes are too short for a table of order {order}.")
    alphabet, letters = np.unique(np.frombuffer(train + valid, np.uint8), return_inverse=True)
    v = len(alphabet)
    known, counts = np.unique(_windows(letters[: len(train)], order, v), return_counts=True)
    contexts, inverse = np.unique(known // v, return_inverse=True)
    context_counts = np.bincount(inverse, weights=counts)
    asked = _windows(letters[len(train) :], order, v)
    hits = _look_up(known, counts, asked)
    totals = _look_up(contexts, context_counts, asked // v)
    return float(-np.log((hits + PRIOR) / (totals + PRIOR * v)).mean())


def _windows(letters: np.ndarray, order: int, v: int) -> np.ndarray:
    """Each stretch of `order` letters as one number in base v, [n - order + 1]."""
    n = len(letters) - order + 1
    code = np.zeros(n, np.int64)
    for i in range(order):
        code = code * v + letters[i : i + n]
    return code


def _look_up(keys: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The value of each asked key, 0 where it is unknown. keys: sorted."""
    at = np.searchsorted(keys, asked).clip(max=len(keys) - 1)
    return np.where(keys[at] == asked, values[at], 0)


@dataclass(frozen=True)
class Curve:
    """What metrics.jsonl tells. A step that was done twice counts as it was the last time."""

    training: tuple[tuple[int, float], ...]
    last_validation: tuple[int, float, int]
    """Step, loss, and the number of tokens that it is the mean of."""
    seconds: float
    """All steps together, without start and validation."""


def curve_of(records: Sequence[dict[str, Any]]) -> Curve:
    """Losses by step. Raises DataError when nothing was validated."""
    steps = {record["step"]: record for record in records if "loss" in record}
    validations = [record for record in records if "validation_loss" in record]
    if not steps or not validations:
        raise DataError(f"{len(steps)} steps and {len(validations)} validations: the run did not come to its end.")
    last = validations[-1]
    return Curve(
        training=tuple((step, float(record["loss"])) for step, record in sorted(steps.items())),
        last_validation=(last["step"], float(last["validation_loss"]), last["validation_tokens"]),
        seconds=sum(float(record["step_time_s"]) for record in steps.values()),
    )


def summary(run: Path, train: bytes, valid: bytes) -> str:
    """The text that ends the quickstart. Raises DataError when the run left no metrics."""
    metrics = run / "metrics.jsonl"
    if not metrics.is_file():
        raise DataError(f"{metrics} is not there: the run left no metrics.")
    curve = curve_of(read_metrics(metrics))
    step, loss, tokens = curve.last_validation
    pairs, triples = table_loss(train, valid, 2), table_loss(train, valid, 3)
    lines = [
        f"training loss, nats a byte, over {len(curve.training)} steps ({curve.seconds:.0f} s in steps)",
        loss_plot(curve.training),
        "",
        "validation loss, nats a byte (lower is better)",
        f"  {loss:.3f}  this GPT after step {step}, on {tokens:,} of the last {len(valid):,} bytes",
        f"  {triples:.3f}  a table of byte triples (trigram), on all of them",
        f"  {pairs:.3f}  a table of byte pairs (bigram), on all of them",
        f"  The tables add {PRIOR} to each count of the first {len(train):,} bytes.",
        "",
        "files",
        *(f"  {path}" for path in sorted(run.rglob("*")) if path.is_file()),
    ]
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 2 where a file is missing or the run is not whole."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="the run's --save directory")
    parser.add_argument("--train-text", type=Path, required=True)
    parser.add_argument("--valid-text", type=Path, required=True)
    arguments = parser.parse_args(words)
    try:
        print(summary(arguments.run, arguments.train_text.read_bytes(), arguments.valid_text.read_bytes()))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
