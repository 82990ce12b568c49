# SPDX-License-Identifier: Apache-2.0
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from megatron_core.errors import ConfigError, DataError
from megatron_core.evaluation.task_rows import find_tasks, read_questions
from megatron_core.evaluation.tasks.table import TASKS

ROW = {"goal": "How?", "sol1": "So.", "sol2": "Or so.", "label": 0}


def write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_files_by_name_or_given(tmp_path: Path) -> None:
    piqa = write(tmp_path / "piqa" / "validation.jsonl.gz", ROW)
    training = write(tmp_path / "piqa" / "train.jsonl", ROW, ROW)
    other = write(tmp_path / "elsewhere" / "mine.jsonl", {"text": "a b"})
    found = find_tasks(["piqa", f"lambada={other}"], tmp_path)
    assert [(file.task.name, file.path, file.training_path) for file in found] == [
        ("piqa", piqa, training),
        ("lambada", other, None),
    ]
    assert find_tasks([f"piqa={piqa}"], None)[0].training_path == training


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for words, error, message in (
        (["pika"], ConfigError, "there is no task 'pika': known are lambada, hellaswag, boolq, race, piqa, "),
        (["wic", "wic=x"], DataError, "task wic: no wic/dev.jsonl or wic/val.jsonl or "),
        (["wic=x"], DataError, "task wic: x: no such file"),
    ):
        with pytest.raises(error) as caught:
            find_tasks(words, tmp_path)
        assert str(caught.value).startswith(message)
    with pytest.raises(ConfigError, match="task wic: say where it is: wic=FILE"):
        find_tasks(["wic"], None)
    path = write(tmp_path / "x", ROW)
    with pytest.raises(ConfigError, match="asked for twice"):
        find_tasks([f"wic={path}", f"wic={path}"], tmp_path)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_rows_become_questions(name: str, tmp_path: Path) -> None:
    questions = read_questions(TASKS["piqa"], write(tmp_path / name, ROW, {**ROW, "label": 1}))
    assert [question.right for question in questions] == [0, 1]


def test_a_row_that_is_not_right_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for line, message in (
        (b'{"goal": "How?"', "not JSON: "),
        (b"[1]", "not a JSON object: b'[1]'"),
        (b'{"goal": "How?", "sol1": "So."}', "no field sol2; there are goal, sol1"),
    ):
        path.write_bytes(json.dumps(ROW).encode() + b"\n\n" + line + b"\n")
        with pytest.raises(DataError) as caught:
            read_questions(TASKS["piqa"], path)
        assert str(caught.value).startswith(f"{path}:3: {message}")
        assert "\n" not in str(caught.value)
    path.write_bytes(b"\n")
    with pytest.raises(DataError, match="holds no rows"):
        read_questions(TASKS["piqa"], path)
    with pytest.raises(DataError, match=r"rows.tsv: rows are read from .jsonl files"):
        read_questions(TASKS["piqa"], tmp_path / "rows.tsv")
