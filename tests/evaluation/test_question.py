# SPDX-License-Identifier: Apache-2.0
from megatron_core.evaluation.question import Choice, Question, multiple_choice


def test_answers_stand_behind_a_space() -> None:
    assert multiple_choice("Is it?", ("no", "yes"), 1) == Question(
        (Choice("Is it?", " no", "no"), Choice("Is it?", " yes", "yes")), 1, "Is it? yes"
    )
