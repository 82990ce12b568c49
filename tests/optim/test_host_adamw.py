# SPDX-License-Identifier: Apache-2.0
"""The host optimizer against the device's: equal to the bit, whatever the types, the length and the kernel."""

from collections.abc import Callable, Iterator

import pytest
import torch

from megatron_core.kernels.precision import at_least_fp32
from megatron_core.optim import host_adamw
from megatron_core.optim.adamw import AdamHyper, Moments, adamw_update
from megatron_core.optim.host_adamw import HostAdamW, OnePass, compiled_pass
from tests.small_model import randn

HYPER = AdamHyper(beta1=0.9, beta2=0.95, eps=1e-8)
KERNELS = {"compiled": compiled_pass(), "torch": None}
Make = Callable[..., HostAdamW]


@pytest.fixture
def make() -> Iterator[Make]:
    made = []

    def build(kernel: OnePass | None, hyper: AdamHyper = HYPER, threads: int = 2) -> HostAdamW:
        made.append(HostAdamW(hyper, threads=threads, kernel=kernel))
        return made[-1]

    yield build
    for adam in made:
        adam.close()


def _moments(weights: torch.Tensor) -> Moments:
    return Moments(torch.zeros_like(weights), torch.zeros_like(weights))


def _run_both(
    adam: HostAdamW,
    length: int,
    *,
    dtype: torch.dtype = torch.float32,
    grad_dtype: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    hyper: AdamHyper = HYPER,
    steps: int = 3,
    **changes: float,
) -> None:
    """Take the same steps on host and device and compare all bits."""
    numbers = {"lr": 1e-2, "weight_decay": 0.1, "grad_factor": 0.37} | changes
    ours, theirs = randn(length).to(dtype), randn(length).to(dtype)
    our_moments, their_moments = _moments(ours), _moments(theirs)
    out = None if out_dtype is None else torch.zeros(length, dtype=out_dtype)
    for step in range(steps):
        grad = (randn(length, seed=step) * 1e-3).to(grad_dtype or dtype)
        adamw_update(theirs, at_least_fp32(grad.clone()), their_moments, hyper, applied_steps=step, **numbers)
        adam.update(ours, grad, our_moments, out, applied_steps=step, **numbers)
    assert torch.equal(ours, theirs)
    assert torch.equal(our_moments.m, their_moments.m)
    assert torch.equal(our_moments.v, their_moments.v)
    if out is not None:
        assert torch.equal(out, theirs.to(out.dtype))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("grad_dtype", "out_dtype"),
    [
        (torch.float32, None),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
    ],
)
def test_equals_the_device_to_the_bit(
    make: Make, kernel: str, grad_dtype: torch.dtype, out_dtype: torch.dtype | None
) -> None:
    _run_both(make(KERNELS[kernel]), 1003, grad_dtype=grad_dtype, out_dtype=out_dtype)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("length", [1, 7, 15, 16, 17, 160, 1000])
def test_tiles_and_remainders_leave_no_seam(
    make: Make, kernel: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_adamw, "_TILE", 64)
    _run_both(make(KERNELS[kernel], threads=3), length, out_dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "changes",
    [{"grad_factor": 1.0}, {"grad_factor": 0.0}, {"grad_factor": 1 / 65536}, {"weight_decay": 0.0}, {"lr": 0.0}],
)
def test_at_the_edges_of_its_numbers(make: Make, changes: dict[str, float]) -> None:
    _run_both(make(compiled_pass()), 100, **changes)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.95), (0.3, 0.5)])
def test_at_other_betas(make: Make, betas: tuple[float, float]) -> None:
    hyper = AdamHyper(*betas, eps=1e-6)
    _run_both(make(compiled_pass(), hyper), 100, hyper=hyper)


def test_float64_stays_float64(make: Make) -> None:
    _run_both(make(compiled_pass()), 100, dtype=torch.float64, out_dtype=torch.bfloat16)


def test_a_kernel_that_rounds_otherwise_is_not_used(make: Make) -> None:
    calls = []

    def astray(weights: torch.Tensor, *_: object, **__: object) -> Callable[[int, int], None]:
        def work(start: int, stop: int) -> None:
            calls.append((start, stop))
            weights[start:stop] += 1e-7

        return work

    adam = make(astray)
    _run_both(adam, 100)
    assert len(calls) == 2, "the probe alone calls it"


def test_every_tile_is_worked_on_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = []
    monkeypatch.setattr(host_adamw, "_TILE", 64)
    monkeypatch.setattr(host_adamw, "_gives_torchs_bits", lambda *_: True)
    adam = make(lambda *_, **__: lambda start, stop: ranges.append((start, stop)), threads=3)
    weights = randn(171).float()
    adam.update(weights, weights, _moments(weights), None, applied_steps=0, lr=0.1, weight_decay=0.0, grad_factor=1.0)
    assert sorted(ranges) == [(0, 64), (64, 128), (128, 160)]


def test_an_error_of_a_thread_is_not_lost(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Callable[[int, int], None]:
        def work(start: int, stop: int) -> None:
            raise ValueError("at work")

        return work

    monkeypatch.setattr(host_adamw, "_gives_torchs_bits", lambda *_: True)
    with pytest.raises(ValueError, match="at work"):
        _run_both(make(broken), 100)


@pytest.mark.parametrize("shape", [(1, 7), (5, 3), (4096,)])
def test_decay_is_decoupled_and_reaches_every_element(make: Make, shape: tuple[int, ...]) -> None:
    weights = torch.ones(shape).flatten()
    moments = _moments(weights)
    adam = make(compiled_pass())
    for step in range(10):
        grad = torch.full_like(weights, 0.5)
        adam.update(weights, grad, moments, None, applied_steps=step, lr=0.01, weight_decay=0.1, grad_factor=1.0)
    assert weights.tolist() == pytest.approx([0.890494] * len(weights), abs=1e-6)
