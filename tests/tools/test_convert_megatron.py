# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_core.checkpoint.stored_model import StoredModel
from tests.checkpoint.megatron.test_import_model import GPT, LLAMA, require_same
from tests.checkpoint.megatron.trees import weights, write_legacy
from tests.small_model import small
from tools import convert_megatron
from tools.convert_checkpoint import main


class Command:
    """Pickles as a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def words(*parts: object) -> list[str]:
    return [str(part) for part in parts]


def test_in_and_out_at_another_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = weights(LLAMA, torch.bfloat16)
    write_legacy(tmp_path / "save", ours, LLAMA, tp=2, pp=2, vpp=2)
    run, back = tmp_path / "run", tmp_path / "back"
    assert main(words("import-megatron", tmp_path / "save", "--output", run, "--vocab-size", 37)) == 0
    said = capsys.readouterr().out
    assert "iter_0001000 (tensor 2 x pipeline 2 x 2 chunks, version 3)\n" in said
    assert "note: named in its pickles, not called and not needed: tests.checkpoint.megatron.trees.Backend\n" in said
    assert "note: 11 rows of padding are left out" in said
    assert "verified: logits of 4 prompts differ from those over Megatron's own matrices by at most " in said
    assert f"wrote {run / 'step_00001000'}: " in said
    assert "optimizer and random numbers stay behind" in said and "data order cannot be continued" in said
    layout = ("--target-tensor-parallel-size", 1, "--target-pipeline-parallel-size", 4)
    assert main(words("export-megatron", run / "step_00001000", "--output", back, *layout)) == 0
    said = capsys.readouterr().out
    assert "verified: " in said and f"wrote {back / 'iter_0001000'}, compared with " in said
    assert "note: rows of padding are zero" in said and "--use-checkpoint-args" in said
    assert sorted(path.name for path in (back / "iter_0001000").iterdir()) == [f"mp_rank_00_{p:03d}" for p in range(4)]
    require_same(back, ours, LLAMA)


def test_other_dtypes_and_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small(make_vocab_size_divisible_by=1)
    ours = weights(config)
    write_legacy(tmp_path / "save", ours, config)
    run = tmp_path / "run"
    assert main(words("import-megatron", tmp_path / "save", "--output", run, "--vocab-size", 37, "--no-verify")) == 0
    assert "verified" not in capsys.readouterr().out
    flags = ("--dtype", "bf16", "--target-transformer-impl", "local")
    assert main(words("export-megatron", run, "--output", tmp_path / "back", *flags)) == 0
    said = capsys.readouterr().out
    assert "verified: " in said and "padding" not in said
    require_same(tmp_path / "back", {name: values.bfloat16() for name, values in ours.items()}, config)
    state = torch.load(tmp_path / "back" / "iter_0001000" / "mp_rank_00" / "model_optim_rng.pt", weights_only=False)
    assert state["args"].bf16 and "decoder.layers.0.input_layernorm.weight" in state["model"]


def test_a_command_in_the_arguments_is_named_and_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    victim = tmp_path / "victim"
    write_legacy(tmp_path / "save", weights(GPT), GPT, evil=Command(f"touch {victim}"))
    assert main(words("import-megatron", tmp_path / "save", "--output", tmp_path / "run", "--vocab-size", 37)) == 0
    assert f"not called and not needed: {os.system.__module__}.system" in capsys.readouterr().out
    assert not victim.exists()


def test_the_tokenizer_says_the_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small(vocab_size=257)
    write_legacy(tmp_path / "save", weights(config), config)
    words_in = words("import-megatron", tmp_path / "save", "--output", tmp_path / "run")
    assert main(words_in) == 2
    error = capsys.readouterr().err
    assert "does not say how many are real: give --vocab-size, or the tokenizer" in error and error.count("\n") == 1
    assert main([*words_in, *words("--tokenizer-type", "ByteTokenizer", "--vocab-size", 200)]) == 2
    assert "--vocab-size 200: the tokenizer has 257 tokens" in capsys.readouterr().err
    assert main([*words_in, "--tokenizer-type", "ByteTokenizer"]) == 0
    with StoredModel(tmp_path / "run") as stored:
        assert stored.data.tokenizer_type == "ByteTokenizer" and stored.model.vocab_size == 257


def test_what_does_not_compute_the_same_is_refused_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_legacy(tmp_path / "save", weights(GPT), GPT)
    right = convert_megatron.foreign_model

    def wrong(*arguments: Any) -> Any:
        found = right(*arguments)
        found.config["model"]["gelu"] = "exact"
        return found

    monkeypatch.setattr(convert_megatron, "foreign_model", wrong)
    words_in = words("import-megatron", tmp_path / "save", "--output", tmp_path / "run", "--vocab-size", 37)
    assert main(words_in) == 2
    assert "one does not compute what the other does; nothing was written" in capsys.readouterr().err
    assert list((tmp_path / "run").iterdir()) == []


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("import-megatron", tmp_path / "gone", "--output", tmp_path / "run", "--vocab-size", 37)) == 2
    assert capsys.readouterr().err.startswith(f"error: cannot list {tmp_path / 'gone'}: No such file")
    assert main(words("export-megatron", tmp_path / "gone", "--output", tmp_path / "out")) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'gone'} holds no checkpoint\n"
