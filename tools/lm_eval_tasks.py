# SPDX-License-Identifier: Apache-2.0
"""The tasks of lm_eval's own library, asked of a model on many ranks by rank 0."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron_core.errors import ConfigError
from megatron_core.evaluation.driven_model import DrivenModel

SHOWN = ("alias", "sample_len", "name", "sample_count")
"""What stands among lm_eval's numbers and is none."""


def require_lm_eval() -> None:
    """Raises ConfigError where lm_eval is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(
            "--lm-eval-tasks needs lm_eval, which is not installed: pip install -c constraints.txt -e '.[eval]'"
        )


def score_lm_eval_tasks(
    driven: DrivenModel,
    names: Sequence[str],
    include: Path | None,
    *,
    num_fewshot: int | None = None,
    limit: int | None = None,
) -> dict[str, dict[str, float]]:
    """On rank 0: metrics by task, as lm_eval names them. `include`: a directory with further tasks' YAML files.

    Raises ConfigError for a task that is not there.
    """
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from megatron_core.evaluation.lm_eval_model import LMEvalModel

    with driven:
        manager = TaskManager(include_path=None if include is None else str(include))
        if unknown := [name for name in names if not manager.match_tasks([name])]:
            raise ConfigError(f"lm_eval has no task {', '.join(unknown)}: `lm_eval ls tasks` lists them")
        found = simple_evaluate(
            model=LMEvalModel(driven),
            tasks=list(names),
            num_fewshot=num_fewshot,
            limit=limit,
            task_manager=manager,
            bootstrap_iters=0,
            log_samples=False,
        )
    assert found is not None, "rank 0 has results"
    return {name: _numbers(each) for name, each in found["results"].items()}


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metric and filter make a name: `acc,none`."""
    return {
        name.removesuffix(",none"): float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and name not in SHOWN
    }
