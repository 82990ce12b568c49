# SPDX-License-Identifier: Apache-2.0
"""Whole runs whose updates are a step late: the rule in plain torch, every layout, skipped steps, an interruption."""

from pathlib import Path

import pytest
import torch
from torch.optim.adamw import adamw

from megatron_core.training.build import Run
from megatron_core.training.train_step import train_step
from tests.e2e.proof import (
    FAMILIES,
    Curve,
    assert_equal,
    reference,
    run_whole,
    start_rank,
    train_rank,
    whole_weights,
)
from tests.e2e.run_folder import saved_tensors
from tests.e2e.test_resume import straight_and_resumed
from tests.rank_pool import run_ranks

START = 3
CONSTANT = f"{FAMILIES['gpt2']} --global-batch-size 4 --num-layers 2 --weight-decay 0.1"
GPT2 = f"{CONSTANT} --lr-warmup-iters 4"
LATE = f"--optimizer-cpu-offload --optimizer-delayed-update-start {START}"


class PlainTorch:
    """x_{t+1} = x_t - Adam(g_{t-1}) in place of a run's own optimizer, with masters and moments whole on the device."""

    def __init__(self, run: Run) -> None:
        self._buckets, self.states = run.reducer.buckets, run.optimizer.states
        self._ahead = [bucket.weights.clone() for bucket in self._buckets]
        self._moments = [(torch.zeros_like(w), torch.zeros_like(w), torch.zeros(())) for w in self._ahead]

    def step(self, *, applied_steps: int, lr: float, weight_decay: float, grad_factor: float) -> None:
        late = applied_steps >= START
        if late:
            self._catch_up()
        for bucket, ahead, (m, v, updates) in zip(self._buckets, self._ahead, self._moments):
            grad = bucket.grads * grad_factor
            decay = weight_decay if bucket.decayed else 0.0
            adamw(
                [ahead], [grad], [m], [v], [], [updates], foreach=False, amsgrad=False, maximize=False,
                beta1=0.9, beta2=0.999, eps=1e-8, lr=lr, weight_decay=decay,
            )  # fmt: skip
        if not late:
            self._catch_up()

    def start_anew(self) -> None:
        raise AssertionError("nothing is loaded here")

    def _catch_up(self) -> None:
        for bucket, ahead in zip(self._buckets, self._ahead):
            bucket.weights.copy_(ahead)


def test_a_run_follows_the_rule() -> None:
    run, state = start_rank(0, 1, f"{GPT2} --fp64")
    object.__setattr__(run, "optimizer", PlainTorch(run))
    losses, norms = [], []
    for _ in range(10):
        state, outcome = train_step(run, state)
        losses.append(outcome.loss)
        norms.append(outcome.grad_norm)
    weights = whole_weights(run)
    run.source.close()
    assert weights is not None
    expected = Curve(losses, norms, {name: tensor.numpy() for name, tensor in weights.items()})
    assert_equal(reference(f"{GPT2} --fp64 {LATE}"), expected)
    at_once = reference(f"{GPT2} --fp64")
    assert at_once.losses[: START + 1] == losses[: START + 1], "the first late update is missed a step later"
    assert at_once.losses[START + 1] != losses[START + 1]


LAYOUTS = {
    "tp2-pp2-dp2-zero": (
        8,
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel --offload-gradients host "
        "--use-distributed-optimizer --overlap-param-gather --recompute-granularity full",
    ),
    "pp2-dp2-gradients-on-the-device": (4, "--pipeline-model-parallel-size 2 --offload-gradients device"),
    "dp2-zero-without-overlap": (2, "--use-distributed-optimizer"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_late_alike(layout: str) -> None:
    world_size, more = LAYOUTS[layout]
    flags = f"{GPT2} --fp64 {LATE}"
    assert_equal(run_ranks(train_rank, world_size, f"{flags} {more}", 10)[0], reference(flags))


def test_a_skipped_step_gives_its_gradients_to_nobody() -> None:
    """The scale overflows in late steps: what is late comes back all the same, and Adam counts applied updates."""
    flags = f"{CONSTANT} --fp16 --initial-loss-scale 16384 --loss-scale-window 2 --hysteresis 1"
    run, state = start_rank(0, 1, f"{flags} {LATE}")
    finish, overflowing, skipped = run.reducer.finish, (5, 6), []

    def poisoned() -> None:
        finish()
        if state.step + 1 in overflowing:
            run.reducer.buckets[0].owned_grads[0] = torch.inf

    run.reducer.finish = poisoned  # type: ignore[method-assign]
    moved = []
    for _ in range(8):
        before = whole_weights(run)
        state, outcome = train_step(run, state)
        skipped.append(outcome.skipped)
        after = whole_weights(run)
        assert before is not None and after is not None
        moved.append(any(not torch.equal(before[name], after[name]) for name in before))
        assert all(bool(tensor.isfinite().all()) for tensor in after.values())
    run.source.close()
    assert [step + 1 for step, skip in enumerate(skipped) if skip] == [5, 6]
    # Steps 1 to 3 at once; 4 is late, comes back in 5, which is skipped; 6 has nothing to come back; 7 is late.
    assert moved == [True, True, True, False, True, False, False, True]
    assert state.applied.steps == 6


@pytest.mark.parametrize("precision", ["", "--bf16"], ids=["fp32", "bf16"])
@pytest.mark.parametrize("layout", ["alone", "dp2-zero", "pp2"])
def test_an_interruption_changes_nothing(layout: str, precision: str, tmp_path: Path) -> None:
    """Saved while an update is on its way: weights and masters are not of the same step, and both go on."""
    straight_and_resumed(tmp_path, layout, f"{GPT2} {precision} {LATE}", at=6, steps=10)


@pytest.mark.parametrize("precision", ["", "--bf16"], ids=["fp32", "bf16"])
def test_who_goes_on_without_the_delay_takes_the_masters(precision: str, tmp_path: Path) -> None:
    flags = f"{GPT2} {precision} --save {tmp_path}"
    run_whole(1, f"{flags} {LATE} --exit-interval 6")
    masters, weights = (saved_tensors(tmp_path, 6, section) for section in ("master", "model"))
    assert any(not torch.equal(masters[name].to(weights[name].dtype), weights[name]) for name in weights)
    for more, expected in (("", masters), ("--optimizer-cpu-offload", masters), (LATE, weights)):
        run, _ = start_rank(0, 1, f"{flags} --load {tmp_path} {more}")
        loaded = whole_weights(run)
        run.source.close()
        assert loaded is not None and loaded.keys() == expected.keys()
        assert all(torch.equal(loaded[name], expected[name].to(loaded[name].dtype)) for name in expected)
