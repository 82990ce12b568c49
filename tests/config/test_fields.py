# SPDX-License-Identifier: Apache-2.0
from collections import Counter

from megatron_core.config.fields import all_fields, replace_fields, section_classes
from megatron_core.config.run import RunConfig


def test_no_two_sections_share_a_field_name():
    counts = Counter(field.name for field in all_fields())
    assert [name for name, count in counts.items() if count > 1] == []


def test_fields_know_section_flag_and_default():
    assert list(section_classes())[:2] == ["model", "parallel"]
    field = next(f for f in all_fields() if f.name == "weight_decay")
    assert (field.section, field.flag, field.default, field.type.scalar) == ("optim", "weight-decay", 0.01, float)


def test_replacing_fields_makes_a_new_config():
    by_name = {field.name: field for field in all_fields()}
    before = RunConfig()
    after = replace_fields(before, {by_name["num_layers"]: 3, by_name["lr"]: 0.1, by_name["bf16"]: True})
    assert (after.model.num_layers, after.optim.lr, after.optim.bf16) == (3, 0.1, True)
    assert before == RunConfig()
    assert after.data == before.data
