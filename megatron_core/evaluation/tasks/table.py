# SPDX-License-Identifier: Apache-2.0
"""All tasks by name: the five areas that MT-NLG was evaluated in (Smith et al., 2022, section 5)."""

from megatron_core.evaluation.tasks.commonsense import PIQA, WINOGRANDE
from megatron_core.evaluation.tasks.completion import HELLASWAG, LAMBADA
from megatron_core.evaluation.tasks.language_inference import ANLI, HANS
from megatron_core.evaluation.tasks.reading import BOOLQ, RACE
from megatron_core.evaluation.tasks.word_sense import WIC

TASKS = {task.name: task for task in (LAMBADA, HELLASWAG, BOOLQ, RACE, PIQA, WINOGRANDE, *ANLI, HANS, WIC)}
