# SPDX-License-Identifier: Apache-2.0
"""Loads a checkpoint of any layout into the tensors of this one, each rank reading just its bytes.

Every block is checked as it is read. Before anything goes on, all ranks know whether each of them read all: if one did
not, all of them load the next older checkpoint. Weights with an fp32 master come from the widest copy there is.
"""

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from megatron_core.checkpoint.agree import Shapes, first_failure, union_of_shapes
from megatron_core.checkpoint.choose import LOGGER, Chosen, choose
from megatron_core.checkpoint.held import Held
from megatron_core.checkpoint.held_errors import has_no_place_in, lost_errors
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.match import require_match
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.errors import CheckpointError
from megatron_core.parallel.context import ParallelContext

_MODEL, _MASTER = "model/", "master/"
_MOMENTS = ("adam_m", "adam_v")
_READERS = 4


def load_tensors(chosen: Chosen, held: Sequence[Held], ctx: ParallelContext, *, with_optim: bool) -> Chosen:
    """Fill every tensor of `held` and return the checkpoint that it came from. All ranks must call.

    `held`: what the run holds, of the weights alone without `with_optim`. The result is an older checkpoint than
    `chosen` where a part of that is damaged. Raises CheckpointError on every rank where tensors do not fit, or nothing
    older is whole; `held` then holds nothing of use.
    """
    weights = {tensor.name: tensor.shape for tensor in held if tensor.name.startswith(_MODEL)}
    weights = dict(union_of_shapes(weights, ctx))
    while True:
        require_fit(chosen.manifest, weights, with_optim=with_optim)
        reason = first_failure(_fill(chosen, held, with_optim=with_optim), ctx)
        if reason is None:
            if ctx.rank == 0 and (note := lost_errors(chosen.manifest, held)):
                LOGGER.warning(note)
            return chosen
        chosen = _older(chosen, reason, ctx)


def require_fit(manifest: Manifest, weights: Shapes, *, with_optim: bool) -> None:
    """Raise CheckpointError unless the checkpoint holds what the run's tensors are filled from, and nothing else.

    weights: global shapes of all of the run's, "model/…"; of each there are moments of the same shape. Masters are what
    the checkpoint has, whatever the run has: the weights are the same numbers.
    """
    sections = {entry.name.partition("/")[0] for entry in manifest.tensors}
    if with_optim and sections.isdisjoint(_MOMENTS):
        raise CheckpointError(
            f"the checkpoint of step {manifest.step} holds no optimizer state (--no-save-optim, or an average): load "
            "its weights alone with --no-load-optim, or with --finetune from step 0"
        )
    compared = ["model"]
    if with_optim:
        compared += [*_MOMENTS, *(["master"] if "master" in sections else [])]
    wanted = {
        f"{section}/{name.removeprefix(_MODEL)}": shape for section in compared for name, shape in weights.items()
    }
    require_match(manifest, wanted, compared)


def _fill(chosen: Chosen, held: Sequence[Held], *, with_optim: bool) -> str | None:
    """Read all of `held`; why that failed, or None. Any failure counts as damage: another checkpoint may be whole."""
    stored = {entry.name: entry.dtype for entry in chosen.manifest.tensors}
    masters = {
        (tensor.name.removeprefix(_MASTER), tensor.rectangle): tensor.values
        for tensor in held
        if tensor.name.startswith(_MASTER)
    }
    followers = []  # 16-bit weights, cast from their masters once those are there, which saves reading them twice
    jobs: list[tuple[str, Held]] = []
    for tensor in held:
        master = masters.get((tensor.name.removeprefix(_MODEL), tensor.rectangle))
        if tensor.name.startswith(_MODEL) and master is not None and not tensor.lags:
            followers.append((tensor.values, master))
        elif has_no_place_in(chosen.manifest, tensor):
            tensor.values.zero_()
        else:
            as_saved = tensor.lags and f"torch.{stored[tensor.name]}" == str(tensor.values.dtype)
            jobs.append((_widest(tensor.name, stored) if with_optim and not as_saved else tensor.name, tensor))
    try:
        _read(chosen, jobs)
    except (CheckpointError, OSError) as error:
        return str(error)
    for weights, master in followers:
        weights.copy_(master)
    return None


def _read(chosen: Chosen, jobs: Sequence[tuple[str, Held]]) -> None:
    """Fill each tensor from the stored one of that name, in a few threads: disks and networks like several readers."""

    def read_share(share: Sequence[tuple[str, Held]]) -> None:
        with CheckpointReader(chosen.directory, chosen.manifest) as reader:
            for name, tensor in share:
                reader.fill(tensor.values, name, tensor.rectangle)

    by_size = sorted(jobs, key=lambda job: -job[1].values.numel())
    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(read_share, [by_size[first::_READERS] for first in range(_READERS)]))


def _widest(name: str, stored: Collection[str]) -> str:
    """The stored tensor that holds these numbers in the most bits: of weights and masters the master, if there."""
    if not name.startswith((_MODEL, _MASTER)):
        return name
    parameter = name.partition("/")[2]
    return _MASTER + parameter if _MASTER + parameter in stored else _MODEL + parameter


def _older(chosen: Chosen, reason: str, ctx: ParallelContext) -> Chosen:
    """The next older checkpoint, after saying why. Raises CheckpointError where there is none or none may be taken."""
    damage = f"the checkpoint of step {chosen.step} cannot be read: {reason}"
    if chosen.source.step is not None:
        raise CheckpointError(f"{damage}; without --ckpt-step an older one would be taken")
    if ctx.rank == 0:
        LOGGER.warning("%s; falling back to an older one", damage)
    try:
        older = choose(chosen.source, ctx, below=chosen.step)
    except CheckpointError as error:
        raise CheckpointError(f"{damage}; {error}") from None
    assert older is not None, "where a newer one was damaged, finding no older one is an error"
    return older
