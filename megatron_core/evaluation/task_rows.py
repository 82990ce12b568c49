# SPDX-License-Identifier: Apache-2.0
"""The files of a task -> its questions. All rows are understood before anything is asked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import orjson

from megatron_core.data.corpus_files import read_chunks
from megatron_core.errors import ConfigError, DataError
from megatron_core.evaluation.question import Question, Row, Task
from megatron_core.evaluation.tasks.table import TASKS

T = TypeVar("T")


@dataclass(frozen=True)
class TaskFile:
    """A task and where it lies."""

    task: Task
    path: Path
    training_path: Path | None = None
    """Where few-shot examples come from; None: from `path`."""


def find_tasks(words: Sequence[str], directory: Path | None) -> list[TaskFile]:
    """Tasks as they are asked for: NAME, to be looked for below `directory`, or NAME=FILE.

    Raises ConfigError for an unknown or repeated name, DataError where there is no file.
    """
    found: dict[str, TaskFile] = {}
    for word in words:
        name, given, file = word.partition("=")
        task = TASKS.get(name)
        if task is None:
            raise ConfigError(f"there is no task {name!r}: known are {', '.join(TASKS)}")
        if name in found:
            raise ConfigError(f"task {name} is asked for twice")
        found[name] = _given(task, Path(file)) if given else _looked_for(task, directory)
    return list(found.values())


def _given(task: Task, path: Path) -> TaskFile:
    if not path.is_file():
        raise DataError(f"task {task.name}: {path}: no such file")
    return TaskFile(task, path, _first(path.parent, tuple(Path(file).name for file in task.training_files)))


def _looked_for(task: Task, directory: Path | None) -> TaskFile:
    if directory is None:
        raise ConfigError(f"task {task.name}: say where it is: {task.name}=FILE, or all tasks' directory")
    path = _first(directory, task.files)
    if path is None:
        raise DataError(f"task {task.name}: no {' or '.join(task.files)} (or the same with .gz) below {directory}")
    return TaskFile(task, path, _first(directory, task.training_files))


def _first(directory: Path, names: Sequence[str]) -> Path | None:
    paths = [directory / f"{name}{compressed}" for name in names for compressed in ("", ".gz")]
    return next((path for path in paths if path.is_file()), None)


def read_questions(task: Task, path: Path) -> list[Question]:
    """One a row. Raises DataError as `read_rows`, and where there are none."""
    questions = [question for _, question in read_rows(path, task.ask)]
    if not questions:
        raise DataError(f"{path} holds no rows")
    return questions


def read_rows(path: Path, understand: Callable[[Row], T]) -> Iterator[tuple[int, T]]:
    """The rows of a .jsonl, plain or compressed, with the numbers of their lines.

    Raises DataError with file and line for one that is no JSON object, or that `understand` raises it for.
    """
    if not {".jsonl", ".json"} & set(path.suffixes):
        raise DataError(f"{path}: rows are read from .jsonl files, plain or compressed (.gz, .zst, .xz)")
    for chunk in read_chunks([path], [], split_blank_lines=False):
        for number, line in enumerate(chunk.payload.split(b"\n"), chunk.first_line):
            if not line.strip():
                continue
            try:
                found = understand(_row(line))
            except DataError as error:
                raise DataError(f"{path}:{number}: {error}") from error
            yield number, found


def _row(line: bytes) -> Row:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise DataError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"not a JSON object: {line[:40]!r}")
    return row
