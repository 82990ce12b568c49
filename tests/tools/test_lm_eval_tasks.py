# SPDX-License-Identifier: Apache-2.0
"""What needs lm_eval itself is in tests/evaluation/test_lm_eval_model.py."""

import importlib.util

import pytest

from megatron_core.errors import ConfigError
from tools.lm_eval_tasks import require_lm_eval


def test_without_lm_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="--lm-eval-tasks needs lm_eval: pip install"):
        require_lm_eval()
