# SPDX-License-Identifier: Apache-2.0
from collections import Counter
from pathlib import Path

from megatron_core.config.fields import all_fields
from megatron_core.config.megatron_flags.aliases import IMPLIED, RENAMED, SAME_AS, VALUE_ALIASES
from megatron_core.config.megatron_flags.harmless import HARMLESS
from megatron_core.config.megatron_flags.not_yet import NOT_YET
from megatron_core.config.megatron_flags.refused import REFUSED
from megatron_core.config.megatron_flags.table import flag_table

NAMES = (Path(__file__).parents[2] / "fixtures" / "megatron_flags.txt").read_text().split()


def own_flags():
    fields = all_fields()
    return {f.flag for f in fields} | {f"no-{f.flag}" for f in fields if f.type.scalar is bool} | {"help"}


def test_every_name_that_megatron_ever_had_has_an_answer():
    assert len(NAMES) == 1043
    answered = own_flags() | set(flag_table().flags)
    assert [name for name in NAMES if name not in answered] == []


def test_no_name_has_two_answers():
    groups = [*HARMLESS.values(), *NOT_YET.values(), *REFUSED.values()]
    listed = [name for group in groups for name in group.split()]
    counts = Counter([*listed, *RENAMED, *SAME_AS, *IMPLIED])
    assert [name for name, count in counts.items() if count > 1] == []
    assert own_flags() & set(counts) == set()


def test_aliases_lead_to_our_flags():
    words = [word for rule in flag_table().flags.values() if rule.status == "alias" for word in rule.words]
    flags = [word.removeprefix("--") for word in words if word.startswith("--")]
    assert len(flags) >= len(RENAMED) + len(SAME_AS) + len(IMPLIED)
    assert set(flags) <= own_flags()


def test_rules_for_values_are_rules_for_known_flags():
    table = flag_table()
    known = own_flags() | set(table.flags)
    assert {name for name, _ in table.values} <= known
    for name, value in VALUE_ALIASES:
        assert table.rule(name, (value,)).status == "alias"


def test_a_value_can_have_another_answer_than_its_flag():
    table = flag_table()
    assert table.rule("zero-stage", ("0",)).status == "harmless"
    assert table.rule("zero-stage", ("1",)).words == ("--use-distributed-optimizer",)
    assert table.rule("zero-stage", ("3",)).status == "refused"
    assert table.rule("hidden-size", ("64",)) is None
