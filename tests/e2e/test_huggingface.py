# SPDX-License-Identifier: Apache-2.0
"""Every family of transformers that is converted: there and back bit for bit, and the same logits at every layout."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from megatron_core.checkpoint.huggingface.export_model import export_model
from megatron_core.checkpoint.huggingface.import_model import import_model, read_architecture
from megatron_core.checkpoint.stored_model import StoredModel
from tests.checkpoint.huggingface.our_logits import logits_at
from tests.checkpoint.huggingface.random_models import MODELS, PROMPTS, load, logits_of, save

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Converted:
    """<name>: transformers' model, <name>.run: ours, <name>.back: exported again; and transformers' logits."""

    root: Path
    logits: dict[str, list[torch.Tensor]]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    root = tmp_path_factory.mktemp("families")
    logits = {}
    for name, (kind, config) in MODELS.items():
        logits[name] = logits_of(save(root / name, kind, config))
        convert(root / name, root / f"{name}.run", root / f"{name}.back")
    return Converted(root, logits)


def convert(source: Path, run: Path, back: Path, family: str | None = None) -> None:
    import_model(source, run, read_architecture(source), report=lambda n: None)
    with StoredModel(run) as stored:
        export_model(stored, back, family=family, report=lambda n: None)


def assert_close(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        assert theirs.std() > 0.1, "logits that say nothing"
        assert (ours - theirs).abs().max() <= TOLERANCE * max(1.0, theirs.abs().max().item())


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back_is_the_same_model(converted: Converted, name: str) -> None:
    before, after = (load_file(converted.root / part / "model.safetensors") for part in (name, f"{name}.back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    # Not to the bit: kernels differ with a weight's address.
    assert_close(logits_of(load(converted.root / f"{name}.back")), converted.logits[name])


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"pp": 2}], ids=["one", "tp2", "pp2"])
def test_logits_are_those_of_transformers(converted: Converted, layout: dict[str, int]) -> None:
    found = logits_at(layout, [converted.root / f"{name}.run" for name in MODELS], PROMPTS)
    for name, got in zip(MODELS, found):
        assert_close(got, converted.logits[name])
