# SPDX-License-Identifier: Apache-2.0
from megatron_core.pipeline.action import Action, Kind
from megatron_core.pipeline.programs import Programs


def test_programs_are_made_once_a_number_of_microbatches() -> None:
    programs = Programs("1f1b", 2, 1, 1)
    assert programs.training(3) is programs.training(3)
    assert [str(a) for a in programs.training(2) if isinstance(a, Action)] == ["F0.0", "B0.0", "F1.0", "B1.0"]
    kinds = {a.kind for a in programs.evaluation(4) if isinstance(a, Action)}
    assert kinds == {Kind.F}
