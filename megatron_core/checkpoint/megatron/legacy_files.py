# SPDX-License-Identifier: Apache-2.0
"""Files of a legacy checkpoint (--ckpt-format torch), one a rank: iter_0001000/mp_rank_00_003/model_optim_rng.pt."""

import re
from dataclasses import dataclass
from pathlib import Path

from megatron_core.checkpoint.files import naming
from megatron_core.errors import CheckpointError

_RANK = re.compile(r"mp_rank_([0-9]{2,4})(?:_([0-9]{3,4}))?(_[0-9]{3})?", re.ASCII)
_FILES = ("model_optim_rng.pt", "model_rng.pt")


@dataclass(frozen=True, kw_only=True)
class LegacyFiles:
    """Paths by (pipeline rank, tensor rank), complete."""

    tp: int
    pp: int
    paths: dict[tuple[int, int], Path]


def legacy_files(directory: Path) -> LegacyFiles:
    """What lies in an iteration's directory. Raises CheckpointError where a rank's file is missing."""
    with naming("list", directory):
        names = sorted(path.name for path in directory.iterdir())
    ranks: dict[tuple[int, int], Path] = {}
    for name in names:
        if match := _RANK.fullmatch(name):
            if match[3]:
                raise CheckpointError(f"{directory / name} is that of an expert-parallel rank: only dense models")
            ranks[int(match[2] or 0), int(match[1])] = _weights_file(directory / name)
    if not ranks:
        raise CheckpointError(f"{directory} holds no mp_rank_* directory")
    pp, tp = (1 + max(rank[axis] for rank in ranks) for axis in (0, 1))
    missing = [(p, t) for p in range(pp) for t in range(tp) if (p, t) not in ranks]
    if missing:
        p, t = missing[0]
        raise CheckpointError(
            f"{directory} has {len(ranks)} of {pp * tp} ranks (tensor {tp} x pipeline {pp}): that of tensor rank {t}, "
            f"pipeline rank {p} is missing"
        )
    return LegacyFiles(tp=tp, pp=pp, paths=ranks)


def _weights_file(directory: Path) -> Path:
    for name in _FILES:
        if (directory / name).exists():
            return directory / name
    raise CheckpointError(f"{directory} has no {_FILES[0]}")
