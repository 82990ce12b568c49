# SPDX-License-Identifier: Apache-2.0
"""Documents name files that exist, the tour passes every package, and what the README shows can be run."""

import re
import shlex
from pathlib import Path

import pytest

from megatron_core.config.cli import parse

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "data/*.md", "docs/*.md", "docs/decisions/*.md")
    for path in ROOT.glob(pattern)
)
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:\.(?:py|md|sh|toml|txt|yaml|png)|/))`")
ELSEWHERE = ("my/", "runs/", "tests/a/", "megatron_core/a/")
"""What the reader makes, and the two halves of the rule that tests mirror the source."""


def prose(document: str) -> str:
    """A document without its fenced blocks, which show paths of the reader's own."""
    return FENCED.sub("", (ROOT / document).read_text())


def blocks(language: str) -> list[str]:
    """The README's fenced blocks of one language, with their common indentation taken off."""
    found = FENCED.finditer((ROOT / "README.md").read_text())
    return [re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE) for match in found if match[2] == language]


def commands() -> list[list[str]]:
    """The README's shell commands as words, continued lines joined."""
    lines = "\n".join(blocks("bash")).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files(document):
    links = [link for link in LINK.findall(prose(document)) if not link.startswith("http")]
    assert [link for link in links if not ((ROOT / document).parent / link.split("#")[0]).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_in_the_text_exist(document):
    paths = [path for path in PATH.findall(prose(document)) if "/" in path and not path.startswith(ELSEWHERE)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_links_and_paths_are_found_at_all():
    assert len(LINK.findall(prose("docs/tour.md"))) > 40
    assert "megatron_core/training/launch.py" in PATH.findall(prose("CONTRIBUTING.md"))
    assert "data/" in PATH.findall(prose("README.md"))


def test_the_tour_is_numbered_and_passes_every_package():
    tour = (ROOT / "docs" / "tour.md").read_text()
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", tour, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    packages = {path.parent.name for path in (ROOT / "megatron_core").glob("*/__init__.py")}
    assert packages - {Path(link).parts[2] for link in LINK.findall(tour) if "megatron_core/" in link} == set()


def test_the_readme_s_configuration_is_accepted(tmp_path):
    (example,) = blocks("yaml")
    path = tmp_path / "gpt.yaml"
    path.write_text(example)
    config = parse(["--config", str(path), "--lr", "2e-4"], world_size=8).config
    assert config.data_parallel_size(8) == 2
    assert config.optim.lr == 2e-4
    assert config.model.num_layers == 24


def test_the_readme_s_commands_are_files_of_the_project():
    named = {word for words in commands() for word in words if word.endswith((".py", ".sh"))}
    assert {"pretrain_gpt.py", "scripts/quickstart.sh", "tools/preprocess_data.py"} <= named
    assert [name for name in named if not (ROOT / name).is_file()] == []
