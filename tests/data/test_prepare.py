# SPDX-License-Identifier: Apache-2.0
"""Any number of workers gives the same files, and what is reported adds up."""

import json
from collections.abc import Sequence
from pathlib import Path

from megatron_core.config.data import DataConfig
from megatron_core.data.corpus_encoder import EncodeJob
from megatron_core.data.indexed_file import IndexedFile
from megatron_core.data.prepare import Progress, prepare

JOB = EncodeJob(tokenizer=DataConfig(tokenizer_type="ByteTokenizer"), vocab_size=None, keys=("text",), append_eod=True)


def corpus(folder: Path, lines: int) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": f"{i} {'z' * 900}"}) + "\n" for i in range(lines)))
    return path


def test_reports_add_up(tmp_path: Path) -> None:
    reports: list[Progress] = []

    def report(done: Progress, bad_lines: Sequence[str]) -> None:
        reports.append(done)

    path = corpus(tmp_path, 9000)
    results = []
    for workers in (1, 2):
        out = str(tmp_path / f"out{workers}")
        done = prepare([path], out, JOB, workers=workers, split_blank_lines=False, skip_bad_lines=False, report=report)
        file = IndexedFile(out + "_text_document")
        assert (done.documents, done.tokens) == (file.num_documents, file.num_tokens) == (9000, done.tokens)
        assert done.text_bytes == done.bytes_read == path.stat().st_size
        results.append(file.read_tokens(0, file.num_tokens).tobytes())
    assert results[0] == results[1]
    assert len(reports) > 6
