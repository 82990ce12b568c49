# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from tools.names_checkpoint import names_checkpoint


def test_which_words_mean_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "run" / "step_00000003").mkdir(parents=True)
    (tmp_path / "tokenizer").mkdir()
    assert names_checkpoint([str(tmp_path / "run")])
    assert names_checkpoint(["--verify", str(tmp_path / "run")])
    assert names_checkpoint(["--tensor", "model/w", str(tmp_path / "run" / "step_00000003")])
    assert names_checkpoint(["absent/step_00000003/"])
    assert names_checkpoint([str(tmp_path / "tokenizer")])
    assert not names_checkpoint([str(tmp_path / "data_text_document")])
    assert not names_checkpoint(
        ["--tokenizer-model", str(tmp_path / "tokenizer"), str(tmp_path / "data_text_document")]
    )
