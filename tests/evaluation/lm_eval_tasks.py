# SPDX-License-Identifier: Apache-2.0
"""lm_eval's own tasks over local files: its YAMLs, with nothing but the source of the rows replaced."""

from pathlib import Path
from typing import Any

import yaml

STOCK = {
    "lambada": "lambada/lambada_openai.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "boolq": "super_glue/boolq/default.yaml",
    "race": "race/race.yaml",
    "piqa": "piqa/piqa.yaml",
    "winogrande": "winogrande/default.yaml",
    "anli_r1": "anli/anli_r1.yaml",
    "wic": "super_glue/wic/default.yaml",
}
CHANGED: dict[str, dict[str, Any]] = {
    "boolq": {"doc_to_target": "{{answer|int}}"},  # SuperGLUE's copy calls it label
    "hans": {  # lm_eval has none
        "output_type": "multiple_choice",
        "doc_to_text": "{{premise}}\nQuestion: {{hypothesis}} True or False?\nAnswer:",
        "doc_to_target": "{{0 if label == 'entailment' else 1}}",
        "doc_to_choice": ["True", "False"],
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    },
}


def write_task(folder: Path, name: str, rows: Path) -> str:
    """A YAML for the rows; the name of the task in it. Examples come from the rows too, never the row itself."""
    import lm_eval

    task: dict[str, Any] = {
        "task": f"local_{name}",
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"test": str(rows)}},
        "training_split": None,
        "validation_split": None,
        "test_split": "test",
        "fewshot_split": "test",
        **CHANGED.get(name, {}),
    }
    if name in STOCK:
        task["include"] = str(Path(lm_eval.__file__).parent / "tasks" / STOCK[name])
    (folder / f"local_{name}.yaml").write_text(yaml.safe_dump(task))
    return f"local_{name}"
