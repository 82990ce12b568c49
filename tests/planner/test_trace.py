# SPDX-License-Identifier: Apache-2.0
import json
from itertools import pairwise

from megatron_core.parallel.rank_grid import TP_PP_DP_ORDER, RankGrid
from megatron_core.pipeline.schedules import build
from megatron_core.pipeline.timeline import simulate_unit
from megatron_core.planner.step_time import StepTime
from megatron_core.planner.trace import chrome_trace

TWO = RankGrid(pp=2)
STEP = StepTime(compute=0, recompute=0, tp=0, p2p=0, bubble=0, dp=0.5, optimizer=0.25)


def events(name: str = "1f1b", v: int = 1, grid: RankGrid = TWO, step: StepTime | None = None) -> list[dict]:
    timeline = simulate_unit(build(name, 2, v, 4), v)
    return json.loads(json.dumps(chrome_trace(timeline, grid, step)))["traceEvents"]


def test_a_slice_an_action_in_microseconds() -> None:
    found = events("interleaved", v=2)
    slices = [event for event in found if event["ph"] == "X"]
    assert len(slices) == 2 * 2 * 2 * 4
    first = next(event for event in slices if event["tid"] == 1 and event["name"] == "F0.1")
    assert (first["ts"], first["dur"], first["cat"]) == (3e6, 1e6, "forward")
    assert first["args"] == {"microbatch": 0, "chunk": 1, "virtual stage": 3}
    for stage in (0, 1):
        ends = [(event["ts"], event["ts"] + event["dur"]) for event in slices if event["tid"] == stage]
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))


def test_reductions_and_the_update_follow_on_every_stage() -> None:
    tails = [event for event in events(step=STEP) if event["name"] in ("gradients and weights", "update")]
    makespan = simulate_unit(build("1f1b", 2, 1, 4), 1).makespan * 1e6
    expected = [(makespan, 0.5e6), (makespan + 0.5e6, 0.25e6)]
    assert [(event["ts"], event["dur"]) for event in tails] == 2 * expected


def test_activations_are_counted_until_their_weight_gradients() -> None:
    for name, most in (("1f1b", 2), ("zero-bubble", 2), ("gpipe", 4)):
        counts = [event["args"]["activations"] for event in events(name) if event["ph"] == "C" and event["tid"] == 0]
        assert max(counts) == most and counts[-1] == 0


def test_stages_are_named_by_their_ranks() -> None:
    names = [
        event["args"]["name"] for event in events(grid=RankGrid(tp=2, dp=2, pp=2)) if event["name"] == "thread_name"
    ]
    assert names == ["stage 0: ranks 0-3", "stage 1: ranks 4-7"]
    far = RankGrid(tp=2, dp=6, pp=2, order=TP_PP_DP_ORDER)
    names = [event["args"]["name"] for event in events(grid=far) if event["name"] == "thread_name"]
    assert names[1] == "stage 1: ranks 2-3, 6-7, 10-11, 14-15, ... (12 ranks)"
    names = [event["args"]["name"] for event in events() if event["name"] == "thread_name"]
    assert names[1] == "stage 1: rank 1"
