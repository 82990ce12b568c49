# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.checkpoint.huggingface.random_models import GPT2, LLAMA, change_config, few_threads, save
from tools import convert_hf
from tools.convert_checkpoint import main


@pytest.fixture(autouse=True)
def _few_threads() -> Iterator[None]:
    with few_threads():
        yield


def words(*parts: object) -> list[str]:
    return [str(part) for part in parts]


def test_in_and_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hf, run, back = tmp_path / "hf", tmp_path / "run", tmp_path / "back"
    save(hf, "mistral", LLAMA | {"sliding_window": 20})
    assert main(words("import-hf", hf, "--output", run, "--seq-length", 16)) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("note: 32 positions there with a window of 20")
    assert said[1].startswith("verified: logits of 4 prompts differ from transformers' by at most ")
    assert said[2].startswith(f"wrote {run / 'step_00000000'}: mistral, ") and said[2].endswith("read back undamaged")
    assert said[3] == "tokenizer: none there, so ids are their own words (NullTokenizer)"
    assert main(words("export-hf", run / "step_00000000", "--output", back, "--family", "mistral")) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("verified: ") and said[1].startswith(f"wrote {back}: MistralForCausalLM, ")
    before, after = load_file(hf / "model.safetensors"), load_file(back / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before | after)


def test_an_export_in_another_dtype_is_verified_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "hf", "gpt2", GPT2)
    assert main(words("import-hf", tmp_path / "hf", "--output", tmp_path / "run", "--no-verify")) == 0
    assert "verified" not in capsys.readouterr().out
    assert main(words("export-hf", tmp_path / "run", "--output", tmp_path / "back", "--dtype", "bf16")) == 0
    assert "verified: " in capsys.readouterr().out
    assert load_file(tmp_path / "back" / "model.safetensors")["transformer.wte.weight"].dtype == torch.bfloat16


def test_a_wrong_import_is_refused_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "hf", "gpt2", GPT2)
    right = convert_hf.read_architecture

    def wrong(*arguments: object) -> object:
        found = right(*arguments)  # type: ignore[arg-type]
        change_config(tmp_path / "hf", activation_function="gelu")
        return found

    monkeypatch.setattr(convert_hf, "read_architecture", wrong)
    assert main(words("import-hf", tmp_path / "hf", "--output", tmp_path / "run")) == 2
    assert "so one does not compute what the other does; nothing was written" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_without_transformers_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "hf", "gpt2", GPT2)
    monkeypatch.setattr(convert_hf, "can_verify", lambda: False)
    assert main(words("import-hf", tmp_path / "hf", "--output", tmp_path / "run")) == 0
    assert capsys.readouterr().out.startswith("not verified: transformers is not installed")


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("import-hf", tmp_path / "gone", "--output", tmp_path / "run")) == 2
    assert capsys.readouterr().err.startswith(f"error: cannot read {tmp_path / 'gone' / 'config.json'}: No such file")
    assert main(words("export-hf", tmp_path / "gone", "--output", tmp_path / "out")) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'gone'} holds no checkpoint\n"
