# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

import pytest

from megatron_core.errors import ConfigError
from megatron_core.pipeline.action import Action, Kind
from megatron_core.pipeline.picture import Panel, check_format, save, shade
from megatron_core.pipeline.schedules import build
from megatron_core.pipeline.timeline import simulate_unit


def panel(title: str, name: str, v: int) -> Panel:
    return Panel(title, "a summary", simulate_unit(build(name, 2, v, 4), v), v, peak_live=(2, 1))


def test_panels_stand_one_above_the_other_and_give_the_same_file_each_time(tmp_path: Path) -> None:
    panels = [panel("measured", "interleaved", 2), panel("simulated", "1f1b", 1)]
    for name in ("one.svg", "other.svg"):
        save(panels, tmp_path / name)
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "other.svg").read_text()
    assert text.index("measured") < text.index("simulated")
    for word in ("a summary", "stage 1", "peak live", "forward, chunk 0 to 1", "bubble"):
        assert f"<!-- {word} -->" in text


def test_a_png_is_written(tmp_path: Path) -> None:
    save([panel("one", "zero-bubble", 1)], tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_chunks_have_shades_of_their_kinds_colour() -> None:
    first, second = (shade(Action(Kind.F, 0, chunk), 2) for chunk in (0, 1))
    assert first != second and shade(Action(Kind.F, 0, 9), 10) == shade(Action(Kind.F, 0, 3), 10)


def test_other_formats_and_a_missing_library_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"\.png or \.svg, unlike picture\.bmp"):
        check_format(Path("picture.bmp"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="matplotlib, which is not installed"):
        check_format(Path("picture.png"))
