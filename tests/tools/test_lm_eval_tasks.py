# SPDX-License-Identifier: Apache-2.0
import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron_core.config.data import DataConfig
from megatron_core.errors import ConfigError
from tests.evaluation.lm_eval_tasks import write_task
from tests.inference.saved_model import GPT2, save
from tools.evaluate import main
from tools.lm_eval_tasks import require_lm_eval


def test_without_lm_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="--lm-eval-tasks needs lm_eval, which is not installed: pip install"):
        require_lm_eval()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_lm_eval_asks_the_same_as_the_task_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval", reason="the extra eval is not installed")
    for name, value in (("HF_HUB_OFFLINE", "1"), ("HF_DATASETS_OFFLINE", "1"), ("HF_DATASETS_CACHE", str(tmp_path))):
        monkeypatch.setenv(name, value)
    model = replace(GPT2, vocab_size=257, seq_length=64, max_position_embeddings=64)
    run = save(tmp_path / "run", model, DataConfig(tokenizer_type="ByteTokenizer"), dtype=torch.float32)
    rows = [{"goal": f"Do {k}", "sol1": "so", "sol2": f"or {k}", "label": k % 2} for k in range(7)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = write_task(tmp_path, "piqa", tmp_path / "rows.jsonl")
    words = [str(run), "--lm-eval-include", str(tmp_path), "--num-fewshot", "1", "--output", str(tmp_path / "out")]
    assert main([*words, "--tasks", f"piqa={tmp_path / 'rows.jsonl'}", "--lm-eval-tasks", task]) == 0
    found = json.loads((tmp_path / "out").read_text())
    for metric in ("acc", "acc_norm"):
        assert found["lm_eval"][task][metric] == found["tasks"]["piqa"]["metrics"][metric]["value"]
    assert f"lm_eval {task}: acc " in capsys.readouterr().out
    assert main([*words, "--lm-eval-tasks", "nothing_of_that_name"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: lm_eval has no task nothing_of_that_name")
