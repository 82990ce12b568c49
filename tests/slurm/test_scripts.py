# SPDX-License-Identifier: Apache-2.0
"""The sbatch scripts without a cluster: what they start is a run that the configuration accepts, and the batch shell
does with its end what launch.sh says."""

import re
import subprocess
from pathlib import Path

import pytest

from megatron_core.config.cli import parse
from tests.slurm.sbatch_script import FOLDER, ROOT, directives, ranks, run_script, stand_ins

SCRIPTS = {path.stem: path for path in sorted(FOLDER.glob("*.sbatch"))}
RUNS = sorted(set(SCRIPTS) - {"preprocess_array", "torchrun"})
DEMO = SCRIPTS["demo_cpu"]
SMALL = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16 "
    "--micro-batch-size 1 --global-batch-size 16 --train-iters 4 --lr 1e-3 --mock-data --vocab-size 64"
)


@pytest.mark.parametrize("path", [*SCRIPTS.values(), FOLDER / "launch.sh"], ids=lambda path: path.name)
def test_the_shell_can_read_it(path: Path) -> None:
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", RUNS)
def test_the_flags_of_a_script_are_a_run_of_its_ranks(name: str, tmp_path: Path) -> None:
    outcome = run_script(SCRIPTS[name], tmp_path, "--exit-interval", "3")
    assert outcome.code == 0, outcome.output
    parsed = parse(outcome.flags, ranks(SCRIPTS[name]))
    assert parsed.notes == ()
    config = parsed.config
    assert config.checkpoint.save == config.checkpoint.load == str(outcome.run)
    assert config.training.exit_signal_handler
    assert config.training.exit_interval == 3, "flags behind the script's name override its own"


def test_mt_nlg_is_cut_as_it_was_published(tmp_path: Path) -> None:
    script = SCRIPTS["mt_nlg_530b"]
    outcome = run_script(script, tmp_path)
    config = parse(outcome.flags, ranks(script)).config
    assert (directives(script)["nodes"], directives(script)["signal"]) == ("280", "B:USR1@600")
    assert config.data_parallel_size(ranks(script)) == 8
    model = config.model
    assert (model.num_layers, model.hidden_size, model.num_attention_heads) == (105, 20480, 128)


def test_a_torchrun_task_starts_the_ranks_of_its_node(tmp_path: Path) -> None:
    outcome = run_script(SCRIPTS["torchrun"], tmp_path, *SMALL.split())
    assert parse(outcome.flags, 16).config.checkpoint.save == str(outcome.run)
    words = outcome.step[outcome.step.index("torch.distributed.run") : outcome.step.index("pretrain_gpt.py")]
    given = dict(zip(words[1::2], words[2::2]))
    assert given["--signals-to-handle"] == "SIGTERM,SIGINT,SIGUSR1"
    assert (given["--nnodes"], given["--nproc-per-node"]) == ("2", "8")
    assert given["--rdzv-endpoint"] == "10.0.0.1:24042"


@pytest.mark.parametrize("name", [*RUNS, "torchrun"])
def test_every_job_comes_back_to_its_own_log_and_is_warned(name: str) -> None:
    asked = directives(SCRIPTS[name])
    assert "requeue" in asked and asked["open-mode"] == "append"
    assert re.fullmatch(r"B:USR1@\d+", asked["signal"])


def test_the_lead_time_of_a_warning_covers_two_steps_and_a_save() -> None:
    """The comments hold the sum."""
    for name in RUNS:
        total = re.search(r"(\d+) s\.\n#SBATCH --signal=B:USR1@(\d+)", SCRIPTS[name].read_text())
        assert total is not None, f"{name} does not end the comment above --signal in '... N s.'"
        assert int(total[1]) < int(total[2]), name


EXIT = 'echo \'{{"code": {code}, "reason": "x", "step": 7}}\' >"$RUN/exit.json"; exit {status}'
SAVED = 'mkdir -p "$RUN/step_00000007"; touch -d "{when}" "$RUN/step_00000007/manifest.json"'


@pytest.mark.parametrize(
    ("step", "code", "requeued"),
    [
        (EXIT.format(code=0, status=0), 0, False),
        (EXIT.format(code=75, status=75), None, True),
        (EXIT.format(code=75, status=1), None, True),  # torchrun knows no 75
        (EXIT.format(code=1, status=1), 1, False),
        (EXIT.format(code=2, status=1), 2, False),
        ("exit 2", 2, False),
        ("exit 137", 137, False),
        (SAVED.format(when="next minute") + "; exit 137", None, True),
        (SAVED.format(when="yesterday") + "; exit 137", 137, False),
        (SAVED.format(when="next minute") + "; " + EXIT.format(code=1, status=1), None, True),
        ("rm -rf $RUN; exit 1", 1, False),
    ],
)
def test_a_job_ends_as_its_run(step: str, code: int | None, requeued: bool, tmp_path: Path) -> None:
    outcome = run_script(DEMO, tmp_path, STEP=step)
    assert outcome.requeued is requeued, outcome.output
    if code is not None:
        assert outcome.code == code, outcome.output


def test_the_exit_file_of_an_earlier_start_does_not_speak_for_this_one(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "exit.json").write_text('{"code": 75, "reason": "SIGUSR1", "step": 3}\n')
    outcome = run_script(DEMO, tmp_path, STEP="exit 1")
    assert (outcome.code, outcome.requeued) == (1, False), outcome.output


def test_a_warning_ends_the_wait_but_not_the_script(tmp_path: Path) -> None:
    """The step lives on after the warning, and its end counts; a second warning changes nothing."""
    step = (
        'trap "warned=\\$((warned + 1))" USR1; warned=0; echo $$ >"$CALLS/step"; '
        "for warning in 1 2; do kill -s USR1 $PPID; until ((warned == warning)); do /bin/sleep 0.05; done; done; "
    ) + EXIT.format(code=75, status=75)
    outcome = run_script(DEMO, tmp_path, STEP=step)
    assert outcome.requeued, outcome.output
    passed_on = (tmp_path / "scancel").read_text().splitlines()
    assert len(passed_on) >= 2 and set(passed_on) == {"--signal=USR1 100042.0"}


def test_containers(tmp_path: Path) -> None:
    mounts = {"CONTAINER_MOUNTS": "/data:/data", "PYTHON": "python3"}
    pyxis = run_script(DEMO, tmp_path / "pyxis", PYXIS_IMAGE="nvcr.io#nvidia/pytorch:26.01-py3", **mounts).step
    assert f"--container-mounts={ROOT}:{ROOT},/data:/data" in pyxis
    assert pyxis.index("--container-image=nvcr.io#nvidia/pytorch:26.01-py3") < pyxis.index("python3")
    apptainer = run_script(DEMO, tmp_path / "apptainer", APPTAINER_IMAGE="torch.sif", **mounts).step
    start = apptainer.index("apptainer")
    bind = f"{ROOT}:{ROOT},/data:/data"
    assert apptainer[start : start + 7] == ("apptainer", "exec", "--nv", "--bind", bind, "torch.sif", "python3")


def test_each_array_task_prepares_its_own_file(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in ("00.jsonl.zst", "01.jsonl.zst", "notes.md", "more.txt"):
        (corpus / name).touch()
    printer = tmp_path / "python"
    printer.write_text('#!/bin/bash\necho "$@"\n')
    printer.chmod(0o755)
    variables = {**stand_ins(tmp_path), "CORPUS": str(corpus), "OUTPUT": str(tmp_path / "out"), "PYTHON": str(printer)}
    command = ["bash", str(SCRIPTS["preprocess_array"])]
    said = [
        subprocess.run(
            command,
            cwd=ROOT,
            env={**variables, "SLURM_ARRAY_TASK_ID": str(task)},
            capture_output=True,
            text=True,
            check=False,
        )
        for task in range(4)
    ]
    for task, name in enumerate(("00.jsonl.zst", "01.jsonl.zst", "more.txt")):
        assert f"--input {corpus}/{name} --output-prefix {tmp_path}/out/{name} " in said[task].stdout
    assert said[3].returncode == 2
    assert "submit with --array=0-2" in said[3].stderr
