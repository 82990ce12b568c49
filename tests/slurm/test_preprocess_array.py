# SPDX-License-Identifier: Apache-2.0
"""Data preparation as a job array on a real Slurm: a .bin/.idx pair a file, as prepared without Slurm."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.sbatch_script import FOLDER, ROOT

pytestmark = pytest.mark.slow


def test_an_array_prepares_a_folder(cluster: Cluster, tmp_path: Path) -> None:
    corpus, expected = tmp_path / "corpus", tmp_path / "expected"
    corpus.mkdir()
    expected.mkdir()
    flags = ("--tokenizer-type", "ByteTokenizer")
    for name in ("a.jsonl", "b.jsonl"):
        (corpus / name).write_text("".join(f'{{"text": "document {i} of {name}"}}\n' for i in range(100)))
        prepare = ["tools/preprocess_data.py", "--input", corpus / name, "--output-prefix", expected / name]
        subprocess.run([sys.executable, *prepare, *flags, "--append-eod", "--workers", "1"], cwd=ROOT, check=True)
    words = ("--array=0-1", "--cpus-per-task=1", f"--output={tmp_path}/%a.log", str(FOLDER / "preprocess_array.sbatch"))
    variables = {"CORPUS": str(corpus), "OUTPUT": str(tmp_path / "out"), "PYTHON": sys.executable}
    job = cluster.submit(*words, *flags, cwd=ROOT, **variables)
    cluster.until("the array has ended", lambda: cluster.run("squeue", "-h", "-j", str(job)) == "", 100)
    logs = "\n".join(path.read_text() for path in tmp_path.glob("*.log"))
    for path in sorted(expected.iterdir()):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), logs
