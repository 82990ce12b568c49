# SPDX-License-Identifier: Apache-2.0
"""The demo job on two nodes of a real Slurm, warned in the middle or with a rank killed: it goes back into the queue,
resumes and ends with the losses, weights and moments of a job that nobody disturbed, bit for bit, dropout on."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.sbatch_script import FOLDER, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STEPS, WARNED_AFTER, SAVED = 150, 30, 50
MODEL = f"""
    --num-layers 2 --hidden-size 64 --seq-length 64 --max-position-embeddings 64 --hidden-dropout 0.1
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --micro-batch-size 2 --global-batch-size 8
    --train-iters {STEPS} --eval-interval 60 --log-interval 10
""".split()
SRUN = ("--ntasks-per-node=2", str(FOLDER / "demo_cpu.sbatch"))
TORCHRUN = (
    *("--ntasks-per-node=1", "--cpus-per-task=2", "--gpus-per-node=0", str(FOLDER / "torchrun.sbatch")),
    *("--config", "configs/demo_cpu.yaml"),
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The prefix of a small prepared text."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text((ROOT / "data" / "tinyshakespeare.txt").read_text()[:20_000])
    command = f"tools/preprocess_data.py --input {folder}/text.txt --output-prefix {folder}/text --workers 1"
    subprocess.run([sys.executable, *command.split(), "--tokenizer-type", "ByteTokenizer"], cwd=ROOT, check=True)
    return str(folder / "text_text_document")


def submit(cluster: Cluster, words: tuple[str, ...], run: Path, text: str) -> int:
    """Put the demo in the queue: 2 nodes of 2 ranks."""
    data = ["--train-data-path", text, "--valid-data-path", text]
    return cluster.submit(
        "--nodes=2",
        f"--output={run.parent}/{run.name}.log",
        *words,
        *MODEL,
        *data,
        cwd=ROOT,
        RUN=str(run),
        RANKS_PER_NODE="2",
        PYTHON=sys.executable,
    )


def losses(run: Path) -> Mapping[int, float]:
    """Loss by step; of a step that was done twice the second time counts."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def said(run: Path) -> str:
    """What the job and its nodes wrote, to explain a failure."""
    files = [run.parent / f"{run.name}.log", *sorted((run / "logs").glob("*.log"))]
    return "\n".join(f"== {path}\n{path.read_text()}" for path in files if path.exists())


@pytest.fixture(scope="module")
def straight(cluster: Cluster, text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody disturbed."""
    run = tmp_path_factory.mktemp("straight") / "run"
    told = cluster.wait(submit(cluster, SRUN, run, text), "COMPLETED", 150)
    assert told["Restarts"] == "0"
    assert list(losses(run)) == list(range(1, STEPS + 1)), said(run)
    return run


@pytest.mark.parametrize("words", [SRUN, TORCHRUN], ids=["srun", "torchrun"])
def test_a_warned_job_ends_as_one_that_nobody_disturbed(
    words: tuple[str, ...], cluster: Cluster, straight: Path, text: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    job = submit(cluster, words, run, text)
    metrics = run / "metrics.jsonl"
    cluster.until("the run is under way", lambda: metrics.exists() and len(losses(run)) > WARNED_AFTER, 150)
    cluster.run("scancel", "--batch", "--signal=USR1", str(job))
    cluster.wait(job, "COMPLETED", 150)
    log = said(run)
    first_end = json.loads(next(line for line in log.splitlines() if line.startswith('{"code"')))
    assert first_end["code"] == 75 and WARNED_AFTER < first_end["step"] < STEPS, log
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines() if "grad_norm" in line]
    assert steps == list(range(1, STEPS + 1)), "no step was done twice: it saved the step at which it stopped"
    assert_ended_alike(cluster, job, run, straight)


def test_a_job_that_lost_a_rank_goes_on_from_its_newest_checkpoint(
    cluster: Cluster, straight: Path, text: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    job = submit(cluster, SRUN, run, text)
    manifest = run / f"step_{SAVED:08}" / "manifest.json"
    cluster.until("a checkpoint is saved", manifest.exists, 150)
    os.kill(process_of_rank(3, job), signal.SIGKILL)
    cluster.wait(job, "COMPLETED", 150)
    assert "requeued, to resume from its newest checkpoint" in said(run)
    assert_ended_alike(cluster, job, run, straight)


def process_of_rank(rank: int, job: int) -> int:
    """Process number of a rank on this machine."""
    wanted = {"SLURM_JOB_ID": str(job), "SLURM_PROCID": str(rank)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "pretrain_gpt.py" in process.cmdline() and wanted.items() <= process.environ().items():
                return process.pid
    raise AssertionError(f"job {job} has no process of rank {rank}")


def assert_ended_alike(cluster: Cluster, job: int, run: Path, straight: Path) -> None:
    """One restart, the end of the program, the same losses and the same bytes of state."""
    log = said(run)
    assert cluster.job(job)["Restarts"] == "1", log
    assert json.loads((run / "exit.json").read_text())["code"] == 0
    assert losses(run) == losses(straight), log
    last = f"step_{STEPS:08}"
    files = sorted(path.name for path in (straight / last).glob("*.safetensors"))
    assert files == [f"rank_{rank:05}.safetensors" for rank in range(4)]
    for name in files:
        assert (run / last / name).read_bytes() == (straight / last / name).read_bytes(), name
