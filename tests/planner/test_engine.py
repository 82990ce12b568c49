# SPDX-License-Identifier: Apache-2.0
import dataclasses

from megatron_core.planner import engine
from megatron_core.planner.engine import Engine


def test_every_program_has_a_name_of_its_own() -> None:
    programs = [value for value in vars(engine).values() if isinstance(value, Engine)]
    assert len({one.name for one in programs}) == len(programs) >= 7


def test_ours_hides_what_it_can() -> None:
    ours = dataclasses.asdict(engine.OURS)
    assert ours["hides_tp_in_backward"] and ours["hides_host_copies"] and not ours["waits_for_p2p"]
