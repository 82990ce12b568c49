# SPDX-License-Identifier: Apache-2.0
"""What a run reports: one JSON object a line in <save>/metrics.jsonl, appended by rank 0 as it happens.

A line is one write, so a run that dies leaves whole lines. Floats are the shortest text that reads back to the same
double. JSON has no NaN or infinity: they are the strings "NaN", "Infinity", "-Infinity", which `float()` reads; null
means "not known here" (mfu on a device of unknown peak). Training lines have `loss`, those of a validation
`validation_loss`, those of a task `evaluation`. A resumed run appends, so a step that was done again has a second
line, and the last one counts.
"""

import dataclasses
import errno
import io
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from megatron_core.training.stragglers import Stragglers  # with torch, which readers of the file need not load

METRICS_FILE = "metrics.jsonl"
LOGGER = logging.getLogger("megatron_core")


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """One training step, as it was. The fields down to `skipped` are the file's keys, in this order."""

    step: int
    """Number of the step, from 1; skipped steps count."""
    loss: float
    """Mean over all unmasked target tokens of the global batch."""
    grad_norm: float
    """Global L2 norm, unscaled, before clipping."""
    lr: float
    """The learning rate that this step used."""
    loss_scale: float
    """The loss scale that this step used."""
    batch_size: int
    """Sequences in this step."""
    consumed_samples: int
    """Sequences read since the start of the run, this step's included."""
    consumed_tokens: int
    """The same in tokens."""
    step_time_s: float
    """Wall time of the step, the slowest rank's."""
    tokens_per_s: float
    """Of all devices together."""
    tflops_per_device: float
    """Model FLOP/s of one device, 1e12."""
    mfu: float | None
    """tflops_per_device over the device's peak; null where that is not known."""
    peak_memory_bytes: int
    """Most memory held at once, the worst rank's."""
    skipped: bool
    """Whether the weights stayed as they were: an fp16 overflow, or a fault that was left out."""
    exposed_comm_s: Mapping[str, float] | None = None
    """Seconds blocked in collectives by axis, which no computation has hidden, the largest of any rank's: on pp and
    world also what is waited for in bubbles. Only axes of more than one rank; left out on CUDA, where the host cannot
    tell."""
    params_norm: float | None = None
    """With --log-params-norm: L2 norm of all weights."""
    num_zeros: int | None = None
    """With --log-num-zeros-in-grad: gradient elements that are zero."""
    timers: Mapping[str, float] = field(default_factory=dict)
    """With --timing-log-level: seconds of each phase, the slowest rank's."""
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """With --log-memory-interval, in a step that counted: live bytes by category, each the worst rank's peak."""
    stragglers: "Stragglers | None" = None
    """With --log-straggler, once a logging window: its fields are keys of the line."""

    def record(self) -> dict[str, Any]:
        """The line's keys and values; extra keys only where they were asked for."""
        record: dict[str, Any] = dataclasses.asdict(self)
        for extra in ("exposed_comm_s", "params_norm", "num_zeros"):
            if record[extra] is None:
                del record[extra]
        for extra in ("timers", "memory_bytes"):
            if not record[extra]:
                del record[extra]
        return record | (record.pop("stragglers") or {})


@dataclass(frozen=True, kw_only=True)
class ValidationMetrics:
    """One validation pass over one set."""

    step: int
    consumed_samples: int
    consumed_tokens: int
    validation_loss: float
    """Mean over all unmasked target tokens of the set."""
    validation_tokens: int
    """How many those were."""
    validation_set: str
    """Name of the set."""

    @property
    def perplexity(self) -> float:
        """exp(loss), infinite where that exceeds a double."""
        return math.exp(self.validation_loss) if self.validation_loss < 709 else math.inf

    def record(self) -> dict[str, Any]:
        """The line's keys and values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class EvaluationMetrics:
    """The scores of one task."""

    step: int
    consumed_samples: int
    consumed_tokens: int
    evaluation: str
    """Name of the task."""
    evaluation_questions: int
    """How many were asked."""
    scores: Mapping[str, float]
    """By metric; keys of the line."""
    standard_errors: Mapping[str, float]
    """The same with _standard_error behind; NaN for a single question."""

    def record(self) -> dict[str, Any]:
        """The line's keys and values."""
        record: dict[str, Any] = dataclasses.asdict(self)
        scores, errors = record.pop("scores"), record.pop("standard_errors")
        return record | scores | {f"{name}_standard_error": error for name, error in errors.items()}


class MetricsWriter:
    """Appends records to a file. Without a path it writes nothing: other ranks, and runs without --save.

    A disk that refuses costs lines and never the run: it is said when that begins, and the file goes on where it can.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: io.FileIO | None = None
        self._refused = False

    def write(self, metrics: StepMetrics | ValidationMetrics | EvaluationMetrics) -> None:
        """Append one line."""
        if self._path is None:
            return
        try:
            self._append(self._path, orjson.dumps(_json_safe(metrics.record())) + b"\n")
            self._refused = False
        except OSError as error:
            self.close()
            if not self._refused:
                LOGGER.error("cannot write %s: %s; training goes on without its lines", self._path, error)
            self._refused = True

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, path: Path, line: bytes) -> None:
        if self._file is not None and not _is_at(self._file, path):
            LOGGER.error("%s is gone: begun anew, without the lines before", path)
            self.close()
        if self._file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: each write below is one system call, there at once and never half a line apart.
            self._file = io.FileIO(path, "ab")
            if _is_torn(path):
                self._file.write(b"\n")
        if self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All records of a file, in order. A line that a crash cut short is left out; non-finite numbers stay strings."""
    records = []
    for line in path.read_bytes().splitlines():
        try:
            records.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            continue
    return records


def _json_safe(value: Any) -> Any:
    """`value` with non-finite floats written as strings, in mappings too."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _json_safe(item) for key, item in value.items()}
    return value


def _is_at(file: io.FileIO, path: Path) -> bool:
    """Whether an open file still has its name: a directory may be removed under a run."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _is_torn(path: Path) -> bool:
    """Whether the file ends within a line, as after a full disk or a lost machine."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            return False
        file.seek(size - 1)
        return file.read(1) != b"\n"
