# SPDX-License-Identifier: Apache-2.0
"""Which programs a rank runs: what must be the same on all nodes."""

import platform
import re
import subprocess
from pathlib import Path

import numpy
import torch
import xxhash

COMMIT = "megatron_core commit"
PACKAGE = Path(__file__).resolve().parents[2]
_DRIVER = Path("/proc/driver/nvidia/version")
_UNKNOWN = "unknown"


def program_versions() -> dict[str, str]:
    """Name and version of each; CUDA, NCCL and the driver where torch has CUDA."""
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        COMMIT: git_commit(PACKAGE),
        "megatron_core source": source_hash(PACKAGE),
    }
    if torch.version.cuda is not None and torch.cuda.is_available():
        versions["CUDA"] = torch.version.cuda
        versions["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
        versions["NVIDIA driver"] = driver_version(_DRIVER)
    return versions


def git_commit(directory: Path) -> str:
    """Commit of the checkout that a directory lies in; unknown without git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), "rev-parse", "--short=12", "HEAD"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return _UNKNOWN
    return done.stdout.strip()


def source_hash(package: Path) -> str:
    """xxh3 over the names and texts of a package's Python files, which tells apart what a commit does not."""
    digest = xxhash.xxh3_64()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def driver_version(path: Path) -> str:
    """From /proc/driver/nvidia/version."""
    try:
        found = re.search(r"Module\s+(?:for \S+\s+)?([0-9][0-9.]+)", path.read_text())
    except OSError:
        found = None
    return found[1] if found else _UNKNOWN
