# SPDX-License-Identifier: Apache-2.0
from megatron_core.checkpoint.megatron.inert import Inert


def test_it_remembers_and_is_equal_to_itself_alone() -> None:
    one, other = Inert("os.system", ("true",)), Inert("os.system", ("true",))
    assert {one: 1, other: 2}[one] == 1 and repr(one) == "<os.system, not made>"
    assert one.fields == {}
    one.state = {"a": 1}
    assert one.fields == {"a": 1}
