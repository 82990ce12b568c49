# SPDX-License-Identifier: Apache-2.0
"""Faults of other 3D-parallel trainers, by the numbers of our list of public cases: layout must not change a run.

Losses and norms of all layouts are compared in float64 elsewhere; here each story has the value that tells it apart.
"""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from megatron_core.pipeline.runtime import PipelineResult
from megatron_core.planner.stage_layers import stage_layers
from megatron_core.tensor_parallel.shard_spec import SpecParameter
from megatron_core.training.build import Run
from megatron_core.training.stop import NO_VOTES
from megatron_core.training.train_step import _global_sums, train_step
from tests.e2e.proof import (
    FAMILIES,
    NO_DROPOUT,
    Curve,
    adam_moments,
    assert_equal,
    config_of,
    corpus,
    reference,
    start_rank,
    train_rank,
    whole_weights,
)
from tests.rank_pool import run_ranks

GPT2 = FAMILIES["gpt2"]
TP2, PP2, SP = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2", "--sequence-parallel"
VOCABULARY_37 = f"--mock-data --vocab-size 37 {NO_DROPOUT} --micro-batch-size 4 --num-layers 2"
LAYOUTS = {"tp2": (2, TP2), "dp2": (2, ""), "tp2-dp2": (4, TP2), "pp2": (2, PP2), "pp2-dp2": (4, PP2)}
LAYOUTS |= {"pp2-dp2-zero": (4, f"{PP2} --use-distributed-optimizer")}


def parameters_of(run: Run) -> list[SpecParameter]:
    return [parameter for bucket in run.reducer.buckets for parameter in bucket.parameters]


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """Of all bits, by name."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("divisor", [1, 128])
def test_a_vocabulary_that_tp_does_not_divide(divisor: int) -> None:
    """PAR-01: 37 words, whatever they are padded to: 20 losses at tp 1 (unpadded) and tp 2 are equal."""
    expected = reference(VOCABULARY_37, 20)
    flags = f"{VOCABULARY_37} {TP2} --make-vocab-size-divisible-by {divisor}"
    assert run_ranks(train_rank, 2, flags, 20)[0].losses == pytest.approx(expected.losses, rel=1e-5)


def first_loss_of_a_zero_head(rank: int, world_size: int, flags: str) -> float:
    run, state = start_rank(rank, world_size, flags)
    with torch.no_grad():
        for parameter in parameters_of(run):
            if parameter.spec.name == "head.weight":
                parameter.zero_()
    return train_step(run, state)[1].loss


@pytest.mark.parametrize("layout", ["", TP2, f"{TP2} {PP2}", f"{TP2} --make-vocab-size-divisible-by 128"])
def test_a_head_of_zeros_costs_the_log_of_the_true_vocabulary(layout: str) -> None:
    """PAR-01: ln 37; a padding row in the softmax would make it ln 38 = 3.637586."""
    world_size = 2 ** layout.count("-size 2")
    flags = f"{VOCABULARY_37} --untie-embeddings-and-output-weights {layout}"
    losses = run_ranks(first_loss_of_a_zero_head, world_size, flags)
    assert losses == pytest.approx([3.610918] * world_size, abs=1e-6)


def initial_weights(rank: int, world_size: int, flags: str) -> dict[str, np.ndarray] | None:
    weights = whole_weights(start_rank(rank, world_size, flags)[0])
    return None if weights is None else {name: tensor.numpy() for name, tensor in weights.items()}


WIDE = f"--mock-data --vocab-size 64 {NO_DROPOUT} --hidden-size 256"


@pytest.mark.parametrize("layout", [TP2, PP2])
def test_initial_weights_do_not_depend_on_the_layout(layout: str) -> None:
    """PAR-02: the whole weights of tp 2 and of pp 2 are those of one process, bit for bit."""
    expected, found = run_ranks(initial_weights, 1, WIDE)[0], run_ranks(initial_weights, 2, f"{WIDE} {layout}")[0]
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_no_shard_or_layer_is_a_copy_and_deviations_are_the_whole_tensor_s() -> None:
    """PAR-02: halves along every dim differ, layers differ, std is 0.02, or 0.02 / sqrt(2 L) before the residual."""
    weights = {name: w for name, w in initial_weights(0, 1, WIDE).items() if name.endswith("weight") and w.ndim > 1}
    for name, weight in weights.items():
        residual = name.endswith(("output.weight", "down.weight"))
        assert weight.std() == pytest.approx(0.02 / math.sqrt(8 if residual else 1), rel=0.02), name
        for dim in range(weight.ndim):
            first, second = np.array_split(weight, 2, axis=dim)
            assert not np.array_equal(first, second), f"{name} repeats along dim {dim}"
        if name.startswith("layers.0"):
            others = [weights[name.replace("layers.0", f"layers.{layer}")] for layer in (1, 2, 3)]
            assert not any(np.array_equal(weight, other) for other in others), f"{name} repeats over layers"


def norm_of_given_gradients(rank: int, world_size: int, flags: str, fill: str) -> float:
    """What the step's own sums make of gradients that are zero but for those that `fill` names."""
    run, _ = start_rank(rank, world_size, flags)
    for bucket in run.reducer.buckets:
        bucket.grads.zero_()
    FILLS[fill](run)
    zero = torch.zeros((), dtype=torch.float64)
    return math.sqrt(_global_sums(run, PipelineResult(zero, zero), NO_VOTES, local=False).squares)


def _put(run: Run, name: str, count: int, value: float) -> None:
    for parameter in parameters_of(run):
        if parameter.spec.name == name and parameter.main_grad is not None:
            parameter.main_grad.view(-1)[:count] = value


def _eight_tens_in_the_shared_table(run: Run) -> None:
    _put(run, "embedding.tokens.weight", 8, 10.0)


def _three_and_four_in_shards_and_twelve_in_a_replica(run: Run) -> None:
    _put(run, "layers.0.mlp.up.weight", 1, 3.0 + run.ctx.tp.coordinate)
    _put(run, "layers.0.mlp_norm.weight", 1, 12.0)


def _averaged_over_dp(run: Run) -> None:
    _put(run, "layers.0.mlp.up.weight", 1, 0.8)


FILLS: dict[str, Callable[[Run], None]] = {
    "table": _eight_tens_in_the_shared_table,
    "shards": _three_and_four_in_shards_and_twelve_in_a_replica,
    "dp": _averaged_over_dp,
}


@pytest.mark.parametrize(
    ("case", "layout", "fill", "norm"),
    [("PAR-04", PP2, "table", 28.284271), ("PAR-05", TP2, "shards", 13.0), ("PAR-05", "", "dp", 0.8)],
)
def test_every_logical_element_counts_once_in_the_norm(case: str, layout: str, fill: str, norm: float) -> None:
    """PAR-04 (twice: 40) and PAR-05 (twice: 17.69, or 1.131 over dp)."""
    assert run_ranks(norm_of_given_gradients, 2, f"{GPT2} {layout}", fill) == pytest.approx([norm, norm], rel=1e-6), (
        case
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_norms_of_a_run_are_those_of_one_process(layout: str) -> None:
    """PAR-04 (tied table at pp 2) and PAR-05: the norm, which Adam would hide; clipping at a tenth of it."""
    world_size, flags = LAYOUTS[layout]
    model = f"{GPT2} --clip-grad 0.1"
    assert run_ranks(train_rank, world_size, f"{model} {flags}", 5)[0].norms == pytest.approx(
        reference(model, 5).norms, rel=1e-5
    )


def replicas(run: Run) -> dict[str, torch.Tensor]:
    """Everything that all tp ranks must hold alike: replicated weights and their moments."""
    whole = {p.spec.name: p.detach() for p in parameters_of(run) if p.spec.dim is None}
    moments = adam_moments(run)
    return whole | {f"{name}.{kind}": moments[name][kind] for name in whole for kind in ("m", "v")}


def digests_of_replicas(rank: int, world_size: int, flags: str, steps: int) -> list[str]:
    run, state = start_rank(rank, world_size, flags)
    found = []
    for _ in range(steps):
        state, _ = train_step(run, state)
        found.append(digest(replicas(run)))
    return found


@pytest.mark.parametrize("flags", ["", f"{SP} --bf16"])
def test_replicas_stay_bitwise_equal_over_tp(flags: str) -> None:
    """PAR-07 and PAR-16: clipping hard, dropout on; norms, row biases, positions and their moments after each step."""
    model = (
        "--mock-data --vocab-size 64 --hidden-dropout 0.1 --attention-dropout 0 --clip-grad 0.01 --micro-batch-size 4"
    )
    first, second = run_ranks(digests_of_replicas, 2, f"{model} {TP2} {flags}", 20)
    assert first == second
    assert len(set(first)) == 20, "the replicas must move"


def digests_and_weights(rank: int, world_size: int, flags: str, steps: int) -> tuple[list[str], Curve | None]:
    """Digests of all this rank's weights after each step, and the curve on rank 0."""
    run, state = start_rank(rank, world_size, flags)
    digests, losses, norms = [], [], []
    for _ in range(steps):
        state, outcome = train_step(run, state)
        digests.append(digest({p.spec.name: p.detach() for p in parameters_of(run)}))
        losses.append(outcome.loss)
        norms.append(outcome.grad_norm)
    weights = whole_weights(run)
    return digests, None if weights is None else Curve(losses, norms, {n: w.numpy() for n, w in weights.items()})


@pytest.mark.parametrize(("world_size", "layout"), [(2, ""), (4, PP2)])
def test_dp_ranks_hold_the_average_of_the_whole_accumulation(world_size: int, layout: str) -> None:
    """PAR-10: equal bits on dp ranks after each step, and the weights of one process, with 4 microbatches a rank."""
    model = f"{GPT2} --fp64"
    found = run_ranks(digests_and_weights, world_size, f"{model} {layout}", 5)
    for stage in range(world_size // 2):
        assert found[2 * stage][0] == found[2 * stage + 1][0], f"the dp ranks of stage {stage} differ"
    assert_equal(found[0][1], reference(model, 5))


@pytest.mark.parametrize(
    ("layers", "layout"),
    [
        (5, PP2),
        (7, PP2),
        (6, f"{PP2} --num-virtual-stages-per-pipeline-rank 2"),
        (10, "--pipeline-model-parallel-size 3"),
    ],
)
def test_no_layer_vanishes(layers: int, layout: str) -> None:
    """PAR-11: numbers of layers that the stages do not divide train like one process, on as many parameters."""
    model = f"{GPT2} --fp64 --num-layers {layers}"
    found = run_ranks(train_rank, 3 if layout.endswith("3") else 2, f"{model} {layout} --micro-batch-size 2", 2)[0]
    expected = reference(f"{model} --micro-batch-size 2", 2)
    assert_equal(found, expected)
    assert sum(w.size for w in found.weights.values()) == sum(w.size for w in expected.weights.values())


def test_thirty_layers_on_four_stages() -> None:
    """PAR-11: the first report's numbers; 28 of 30 were built."""
    config = config_of(f"{GPT2} --num-layers 30 --pipeline-model-parallel-size 4", 4)
    stages = stage_layers(config.model, config.parallel)
    assert [layer for stage in stages for layer in stage] == list(range(30))


def sums_by_sample(flags: str) -> list[tuple[float, int]]:
    """(summed loss, unmasked tokens) of each sample of the first batch, from the untrained model, one by one."""
    run, _ = start_rank(0, 1, f"{flags} --micro-batch-size 1")
    found = []
    with torch.no_grad():
        for batch in run.source.step(tuple((n,) for n in range(8)), None):
            losses = run.chunks[0](None, batch)
            found.append((float((losses * batch.loss_mask).sum()), int(batch.loss_mask.sum())))
    return found


def test_the_loss_is_a_mean_over_tokens(tmp_path: Path) -> None:
    """PAR-13: total over total, not a mean of means; one microbatch of 8, 8 of one, and dp 2 agree in loss and norm."""
    model = f"{corpus(tmp_path)} {NO_DROPOUT} --eod-mask-loss --init-method-std 0.5 --fp64"
    sums = sums_by_sample(model)
    mean = sum(loss for loss, _ in sums) / sum(tokens for _, tokens in sums)
    mean_of_means = sum(loss / tokens for loss, tokens in sums) / len(sums)
    curves = [run_ranks(train_rank, world, f"{model} {more}", 5)[0] for world, more in
              [(1, "--micro-batch-size 8"), (1, ""), (2, ""), (2, f"{PP2} --micro-batch-size 4")]]  # fmt: skip
    for curve in curves:
        assert curve.losses[0] == pytest.approx(mean, rel=1e-10)
        assert curve.losses == pytest.approx(curves[0].losses, rel=1e-10)
        assert curve.norms == pytest.approx(curves[0].norms, rel=1e-10)
    assert abs(mean - mean_of_means) > 1e-3 * mean, "the batch must tell the two apart"


def gradients_of_replicas(rank: int, world_size: int, flags: str) -> dict[str, np.ndarray]:
    """After the first step, on this rank."""
    run, state = start_rank(rank, world_size, f"{flags} --clip-grad 0")
    train_step(run, state)
    return {p.spec.name: p.main_grad.numpy().copy() for p in parameters_of(run) if p.spec.dim is None}


def test_sequence_parallelism_sums_the_gradients_of_replicas() -> None:
    """PAR-16: gradients of norms, biases and positions on every tp rank are those without sequence parallelism."""
    expected = run_ranks(gradients_of_replicas, 2, f"{GPT2} {TP2}")[0]
    assert {"final_norm.weight", "layers.3.mlp_norm.bias", "embedding.positions.weight"} <= expected.keys()
    for found in run_ranks(gradients_of_replicas, 2, f"{GPT2} {TP2} {SP}"):
        for name, gradient in expected.items():
            gap = np.abs(found[name] - gradient).max()
            assert gap <= 1e-5 * np.abs(gradient).max(), name
