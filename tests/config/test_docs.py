# SPDX-License-Identifier: Apache-2.0
import dataclasses
from pathlib import Path

from megatron_core.config.docs import field_docs, render
from megatron_core.config.fields import section_classes

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == render(), "run python tools/generate_config_docs.py"


def test_every_field_has_a_docstring():
    for name, cls in section_classes().items():
        docs = field_docs(cls)
        assert [f"{name}.{f.name}" for f in dataclasses.fields(cls) if not docs.get(f.name)] == []


def test_a_table_row_shows_flag_value_default_and_meaning():
    page = render()
    assert "| `--weight-decay` | FLOAT | 0.01 | Decoupled weight decay. |" in page
    assert "| `--num-layers` | INT | required |" in page
    assert "| `--add-bias-linear` | switch | on |" in page
    assert "- `--layernorm-epsilon` → `--norm-epsilon VALUE`" in page
