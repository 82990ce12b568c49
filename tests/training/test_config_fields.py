# SPDX-License-Identifier: Apache-2.0
from megatron_core.config.fields import all_fields
from megatron_core.training.config_fields import ARCHITECTURE, FREE, RECIPE, SCHEDULE, SHAPES


def test_every_field_that_may_change_the_numbers_has_one_meaning() -> None:
    """A new field is put into a table on purpose, or this fails."""
    tables = [ARCHITECTURE, SHAPES, SCHEDULE, RECIPE, FREE]
    counted = sorted(name for table in tables for name in table)
    fields = [field.name for field in all_fields() if field.section in ("model", "optim", "data", "training")]
    assert counted == sorted(fields)


def test_tables_are_of_one_section_where_they_say_so() -> None:
    sections = {field.name: field.section for field in all_fields()}
    assert {sections[name] for name in ARCHITECTURE | SHAPES} == {"model"}
    assert {sections[name] for name in SCHEDULE} == {"optim"}
