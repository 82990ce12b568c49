# SPDX-License-Identifier: Apache-2.0
"""Actions print, parse back and say what they wait for."""

import pytest

from megatron_core.pipeline.action import Action, Exchange, Kind, Product, Transfer, makes, needs, virtual_stage


def test_actions_print_and_parse_back():
    assert str(Action(Kind.F, 2, 1)) == "F2.1"
    for kind in Kind:
        action = Action(kind, 13, 2)
        assert Action.parse(str(action)) == action
        assert hash(Action.parse(str(action))) == hash(action)


@pytest.mark.parametrize("text", ["", "F2", "X2.1", "F2.1 ", "F-1.0", "F2.1.0", "f2.1"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match=r"as in F2\.1"):
        Action.parse(text)


def test_exchanges_print_what_goes_where():
    transfers = (Transfer(True, 3, "activation", 2, 1), Transfer(False, 0, "gradient", 5, 0))
    assert str(Exchange(transfers)) == "[A2.1>3 G5.0<0]"
    assert len({Exchange(transfers), Exchange(transfers)}) == 1


def test_virtual_stages_run_through_all_ranks_before_the_next_chunk():
    assert [virtual_stage(stage, chunk, 3) for chunk in range(2) for stage in range(3)] == list(range(6))


def test_what_actions_need_and_make():
    last = 5
    assert needs(Action(Kind.F, 1, 0), 0, last) == ()
    assert needs(Action(Kind.F, 1, 0), 2, last) == (Product(Kind.F, 1, 1),)
    assert needs(Action(Kind.B, 1, 1), 5, last) == (Product(Kind.F, 1, 5),)
    assert needs(Action(Kind.I, 1, 1), 4, last) == (Product(Kind.F, 1, 4), Product(Kind.I, 1, 5))
    assert needs(Action(Kind.W, 1, 1), 4, last) == (Product(Kind.I, 1, 4),)
    assert makes(Action(Kind.B, 1, 0), 3) == makes(Action(Kind.I, 1, 0), 3) == Product(Kind.I, 1, 3)
