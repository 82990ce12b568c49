# SPDX-License-Identifier: Apache-2.0
"""Real trained models, converted from transformers' files, go on with a prompt as transformers does."""

import json
from pathlib import Path

import pytest

from megatron_core.checkpoint.huggingface.import_model import import_model, read_architecture
from megatron_core.inference.generate import GenerationSettings, generate
from megatron_core.inference.open_model import open_model
from megatron_core.inference.sampling import Sampling
from megatron_core.parallel.context import ParallelContext
from tests.rank_pool import ranks
from tests.small_model import ALONE

MODELS = Path(__file__).parents[3] / "shared" / "data" / "models"
STORIES, SHAKESPEARE = MODELS / "stories260K-hf", MODELS / "gpt2-shakespeare-char-hf"

pytestmark = pytest.mark.skipif(not MODELS.exists(), reason="the real models lie outside of the repository")


def imported(source: Path, root: Path) -> str:
    import_model(source, root / "run", read_architecture(source), report=lambda n: None)
    return str(root / "run")


def golden(source: Path) -> tuple[list[int], list[int]]:
    """A prompt and what follows it."""
    if source == STORIES:
        ids = json.loads((source / "golden_greedy.json").read_text())["greedy_ids_from_bos"]
        return ids[:1], ids[1:]
    told = json.loads((source / "golden.json").read_text())
    characters = json.loads((source / "chars.json").read_text())
    ids = [characters.index(character) for character in told["greedy"]]
    return ids[: len(told["prompt"])], ids[len(told["prompt"]) :]


def check(ctx: ParallelContext, run: str, source: str, most: int = 256) -> None:
    prompt, expected = golden(Path(source))
    expected = expected[:most]
    settings = GenerationSettings(max_new_tokens=len(expected), sampling=Sampling(temperature=0))
    (row,) = generate(open_model(Path(run), ctx).model, [prompt], settings)
    assert row.tokens == expected


CHECK_LAYOUTS = ranks({"tp": 2, "pp": 2})(check)


@pytest.mark.parametrize("source", [STORIES, SHAKESPEARE], ids=lambda path: path.name)
def test_the_golden_greedy_text(source: Path, tmp_path: Path) -> None:
    run = imported(source, tmp_path)
    check(ALONE, run, str(source))
    CHECK_LAYOUTS({"tp": 2, "pp": 2}, run=run, source=str(source), most=40)
