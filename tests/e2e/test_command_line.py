# SPDX-License-Identifier: Apache-2.0
"""`python pretrain_gpt.py` as a stranger meets it: messages, exit codes, files, launchers."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from safetensors.torch import load_file

from megatron_core.training.metrics import read_metrics
from megatron_core.training.pretrain import pretrain

ROOT = Path(__file__).parents[2]
TRAIN = (
    "--num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 "
    "--micro-batch-size 2 --global-batch-size 4 --train-iters 4 --lr 1e-3 --lr-decay-style constant --num-workers 0 "
    "--hidden-dropout 0 --attention-dropout 0 --eval-iters 0"
)
MOCK = f"{TRAIN} --mock-data --vocab-size 32"
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "SLURM_", "TORCHELASTIC_")


def start(flags: str, variables: Mapping[str, str] | None = None, *launcher: str) -> subprocess.Popen[str]:
    """The command in a process of its own, in an environment without traces of a launcher but those given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return subprocess.Popen(
        [sys.executable, *launcher, "pretrain_gpt.py", *flags.split()],
        cwd=ROOT,
        env={**clean, "OMP_NUM_THREADS": "1", **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and everything said."""
    try:
        said, _ = process.communicate(timeout=90)
    finally:
        process.kill()
    return process.returncode, said


def ending(folder: Path) -> dict[str, object]:
    return json.loads((folder / "exit.json").read_text())


def test_a_wrong_flag_is_one_message() -> None:
    code, said = finish(start(f"{MOCK} --num-layerz 2 --lr nothing"))
    assert code == 2
    assert "unknown flag --num-layerz; did you mean --num-layers?" in said
    assert "--lr" in said and "Traceback" not in said


def test_missing_data_is_one_message(tmp_path: Path) -> None:
    code, said = finish(start(f"{TRAIN} --data-path {tmp_path}/none --tokenizer-type ByteTokenizer"))
    assert code == 2
    assert f"{tmp_path}/none.idx" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read --config"),
        ("model:\n  num_layers: 2\n - x", "not valid YAML"),
        ("model:\n  num_layer: 2\n", "did you mean num_layers?"),
        ("model:\n  num_layers: two\n", "num_layers"),
    ],
)
def test_a_bad_file_is_one_message(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.yaml"
    if text is not None:
        path.write_text(text)
    assert pretrain(["--config", str(path), *MOCK.split()[2:]], time.monotonic()) == 2
    out, err = capsys.readouterr()
    assert message in err and str(path) in err and not out


def test_a_printed_configuration_reproduces_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pretrain([*MOCK.split(), "--bf16", "--print-config"], time.monotonic()) == 0
    printed = capsys.readouterr().out
    (tmp_path / "run.yaml").write_text(printed)
    assert pretrain(["--config", str(tmp_path / "run.yaml"), "--print-config"], time.monotonic()) == 0
    assert capsys.readouterr().out == printed
    assert "bf16: true" in printed


def test_a_run_under_torchrun_leaves_its_files(tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    code, said = finish(start(f"{MOCK} --pipeline-model-parallel-size 2 --save {tmp_path}", None, *launcher))
    assert code == 0, said
    assert ending(tmp_path) == {"code": 0, "reason": "finished", "step": 4, "checkpoint_step": 4}
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]
    names = [name for file in tmp_path.glob("step_00000004/*.safetensors") for name in load_file(file)]
    expected = {f"model/{name}" for name in ("embedding.tokens.weight", "layers.1.mlp.down.weight", "final_norm.bias")}
    assert expected <= set(names)


def test_srun_needs_no_other_launcher(tmp_path: Path, free_port: int) -> None:
    """Two processes with Slurm's variables alone; --exit-interval ends them."""
    flags = f"{MOCK} --tensor-model-parallel-size 2 --save {tmp_path} --exit-interval 3"
    processes = []
    for rank in ("0", "1"):
        slurm = {"PROCID": rank, "LOCALID": rank, "NTASKS": "2", "STEP_TASKS_PER_NODE": "2", "JOB_ID": "4711"}
        variables = {f"SLURM_{name}": value for name, value in slurm.items()}
        variables |= {"SLURM_STEP_NODELIST": "localhost", "MASTER_PORT": str(free_port)}
        processes.append(start(flags, variables))
    results = [finish(process) for process in processes]
    assert [code for code, _ in results] == [0, 0], results
    assert ending(tmp_path) == {"code": 0, "reason": "exit_interval 3", "step": 3, "checkpoint_step": 3}
    assert "step 3/4" not in results[1][1], "rank 0 alone speaks"


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_exit_duration_counts_from_the_start_of_the_process(tmp_path: Path) -> None:
    code, _ = finish(start(f"{MOCK} --exit-duration-in-mins 0.0001 --save {tmp_path}"))
    assert code == 0
    assert ending(tmp_path) == {"code": 0, "reason": "exit_duration_in_mins 0.0001", "step": 1, "checkpoint_step": 1}


def test_a_loss_that_is_no_number_ends_the_run_with_the_samples() -> None:
    code, said = finish(start(f"{MOCK} --lr 1e30"))
    assert code == 1
    assert "step 2:" in said and "samples 4 to 7" in said and "--no-check-for-nan-in-loss-and-grad" in said


def test_control_c_ends_a_run_in_one_line() -> None:
    process = start(f"{MOCK} --train-iters 1000000 --log-interval 10")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 10/"):
            break
    process.send_signal(signal.SIGINT)
    code, said = finish(process)
    assert code == 1
    assert "interrupted" in said.splitlines()[-1] and "Traceback" not in said


def test_a_bug_is_a_traceback_and_exit_code_1() -> None:
    """Though the process leaves without the interpreter's own end."""
    code, said = finish(start("--help", None, "-c", "import pretrain_gpt, sys; pretrain_gpt.leave(lambda: 1 / 0)"))
    assert code == 1 and said.rstrip().endswith("ZeroDivisionError: division by zero")


def test_help_is_printed_whole() -> None:
    code, said = finish(start("--help"))
    assert code == 0 and "--tensor-model-parallel-size" in said and "--wandb-project" in said
