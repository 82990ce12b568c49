# SPDX-License-Identifier: Apache-2.0
"""Runs an sbatch script as the batch shell would, with stand-ins for Slurm's commands that write down how they were
called: what a script asks for is seen without a cluster of its size."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scripts" / "slurm"

_STAND_INS = {
    # The step: writes its words, then does what the test wants of it.
    "srun": 'for word in "$@"; do printf "%s\\0" "$word"; done >"$CALLS/srun"\neval "${STEP:-true}"\n',
    "scontrol": 'if [ "$1" = show ]; then echo node1; echo node2; else echo "$*" >>"$CALLS/scontrol"; fi\n',
    "sinfo": "echo 10.0.0.1\necho 10.0.0.1\n",
    "scancel": 'echo "$*" >>"$CALLS/scancel"\nkill -s USR1 "$(cat "$CALLS/step")"\n',
    "sleep": "exit 0\n",
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a script did."""

    code: int
    output: str
    step: tuple[str, ...]
    """The words of srun."""
    requeued: bool
    run: Path

    @property
    def flags(self) -> tuple[str, ...]:
        """The words behind pretrain_gpt.py."""
        return self.step[self.step.index("pretrain_gpt.py") + 1 :]


def directives(script: Path) -> dict[str, str]:
    """The `#SBATCH --name=value` lines; a name alone has the value ''."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script.read_text(), re.MULTILINE))


def ranks(script: Path) -> int:
    """How many tasks the script's step has."""
    asked = directives(script)
    return int(asked["nodes"]) * int(asked["ntasks-per-node"])


def stand_ins(folder: Path) -> dict[str, str]:
    """Variables under which Slurm's commands are stand-ins, kept in `folder`."""
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    for name, text in _STAND_INS.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}")
        (programs / name).chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MASTER_"))}
    return {**clean, "PATH": f"{programs}:{clean['PATH']}", "CALLS": str(folder)}


def run_script(script: Path, folder: Path, *words: str, **variables: str) -> Outcome:
    """Run `script` from the root of the checkout; STEP is what the stand-in for srun does."""
    run = folder / "run"
    environment = {
        **stand_ins(folder),
        "SLURM_JOB_ID": "100042",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": directives(script).get("nodes", "1"),
        "SLURM_CPUS_PER_TASK": directives(script).get("cpus-per-task", "1"),
        "RUN": str(run),
        **variables,
    }
    command = ["bash", str(script), *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    step, scontrol = folder / "srun", folder / "scontrol"
    return Outcome(
        code=done.returncode,
        output=done.stdout + done.stderr,
        step=tuple(step.read_text().split("\0")[:-1]) if step.exists() else (),
        requeued=scontrol.exists() and scontrol.read_text() == "requeue 100042\n",
        run=run,
    )
