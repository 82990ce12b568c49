# SPDX-License-Identifier: Apache-2.0
"""PAR-08: dropout masks equal where activations are replicated, different where they are sharded, at every layout, and
the same after a restart.

The masks of one process are the truth: tp ranks hold its masks whole on replicated activations, their own heads' on
attention, their own positions' under sequence parallelism; dp ranks hold their own samples'.
"""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from megatron_core.attention import self_attention
from megatron_core.kernels.dropout import DropoutKey
from megatron_core.model import block
from megatron_core.training.train_step import train_step
from tests.e2e.proof import run_whole, start_rank
from tests.rank_pool import run_ranks

FLAGS = (
    "--mock-data --vocab-size 64 --hidden-dropout 0.5 --attention-dropout 0.5 --num-workers 1 --num-layers 2 "
    "--micro-batch-size 2"
)
TP2 = "--tensor-model-parallel-size 2"
Place = tuple[int, int, int, str]  # step, sample, layer, where
Masks = dict[Place, np.ndarray]


def masks_of_a_run(rank: int, world_size: int, flags: str) -> tuple[Masks, list[bytes]]:
    """Which elements lived in steps 1 and 5, [s_local, h] or [heads_local, s, s]; the default generator by step.

    A run that loads a checkpoint begins after it.
    """
    run, state = start_rank(rank, world_size, flags)
    masks: Masks = {}
    generators = []
    for step in range(state.step + 1, 6):
        seen = masks if step in (1, 5) else {}
        with (
            patch.object(block, "hidden_dropout", _recorder(block.hidden_dropout, seen, step)),
            patch.object(
                self_attention, "attention_keep_mask", _keep_recorder(self_attention.attention_keep_mask, seen, step)
            ),
        ):
            state, _ = train_step(run, state)
        generators.append(torch.get_rng_state().numpy().tobytes())
    run.source.close()
    return masks, generators


def _recorder(dropout: Callable[..., torch.Tensor], masks: Masks, step: int) -> Callable[..., torch.Tensor]:
    def recording(
        x: torch.Tensor, rate: float, key: DropoutKey, layer: int, place: str, positions: range, seq_length: int
    ) -> torch.Tensor:
        out = dropout(x, rate, key, layer, place, positions, seq_length)
        for number, sample in enumerate(key.sample_numbers):
            masks[step, sample, layer, place] = (out[:, number] != 0).numpy()
        return out

    return recording


def _keep_recorder(draw: Callable[..., torch.Tensor], masks: Masks, step: int) -> Callable[..., torch.Tensor]:
    def recording(key: DropoutKey, rate: float, layer: int, heads: range, like: torch.Tensor) -> torch.Tensor:
        keep = draw(key, rate, layer, heads, like)
        for number, sample in enumerate(key.sample_numbers):
            masks[step, sample, layer, "attention"] = (keep[number] != 0).numpy()
        return keep

    return recording


def _split(masks: Masks) -> tuple[Masks, Masks]:
    """Those of hidden activations, and those of attention probabilities."""
    hidden = {place: mask for place, mask in masks.items() if place[3] != "attention"}
    return hidden, {place: mask for place, mask in masks.items() if place[3] == "attention"}


def _same(found: Masks, expected: Masks) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[k], expected[k]) for k in expected)


def _cut(masks: Masks, part: int) -> Masks:
    return {place: np.array_split(mask, 2)[part] for place, mask in masks.items()}


def test_masks_of_tensor_parallel_ranks() -> None:
    truth, _ = masks_of_a_run(0, 1, FLAGS)
    hidden, attention = _split(truth)
    assert len(hidden) == 2 * 8 * 2 * 2 and len(attention) == 2 * 8 * 2
    ranks = run_ranks(masks_of_a_run, 2, f"{FLAGS} {TP2}")
    assert ranks[0][1] == ranks[1][1], "a generator ran ahead on one tp rank"
    for rank, (masks, _) in enumerate(ranks):
        found_hidden, found_attention = _split(masks)
        assert _same(found_hidden, hidden)
        assert _same(found_attention, _cut(attention, rank))
    for place in attention:
        assert not np.array_equal(ranks[0][0][place], ranks[1][0][place]), f"tp ranks share the masks of {place}"


def test_masks_of_sequence_chunks() -> None:
    hidden, _ = _split(masks_of_a_run(0, 1, FLAGS)[0])
    for rank, (masks, _) in enumerate(run_ranks(masks_of_a_run, 2, f"{FLAGS} {TP2} --sequence-parallel")):
        assert _same(_split(masks)[0], _cut(hidden, rank))
    assert not any(np.array_equal(*np.array_split(mask, 2)) for mask in hidden.values())


def test_masks_of_data_parallel_and_pipeline_ranks() -> None:
    truth, _ = masks_of_a_run(0, 1, FLAGS)
    for layout in ("", "--pipeline-model-parallel-size 2"):
        first, second = (masks for masks, _ in run_ranks(masks_of_a_run, 2, f"{FLAGS} {layout}"))
        assert not first.keys() & second.keys()
        assert _same(first | second, truth)


def test_masks_after_a_restart(tmp_path: Path) -> None:
    """Step 5 is as in the straight run where the run was started again at step 3, in its own layout or in another."""
    truth = {place: mask for place, mask in masks_of_a_run(0, 1, FLAGS)[0].items() if place[0] == 5}
    run_whole(2, f"{FLAGS} {TP2} --save {tmp_path} --exit-interval 3")
    (whole, _), *_ = run_ranks(masks_of_a_run, 1, f"{FLAGS} --load {tmp_path}")
    assert _same(whole, truth)
    hidden, attention = _split(truth)
    ranks = run_ranks(masks_of_a_run, 2, f"{FLAGS} {TP2} --load {tmp_path}")
    assert ranks[0][1] == ranks[1][1], "a generator ran ahead on one tp rank"
    for rank, (masks, _) in enumerate(ranks):
        found_hidden, found_attention = _split(masks)
        assert _same(found_hidden, hidden)
        assert _same(found_attention, _cut(attention, rank))


def test_no_two_masks_are_equal() -> None:
    """Over samples, layers, places and steps; half of the elements live."""
    hidden, attention = _split(masks_of_a_run(0, 1, FLAGS)[0])
    for masks in (hidden, attention):
        by_bits = defaultdict(list)
        for place, mask in masks.items():
            by_bits[mask.tobytes()].append(place)
        assert len(by_bits) == len(masks)
        assert abs(np.mean([mask.mean() for mask in masks.values()]) - 0.5) < 0.01
