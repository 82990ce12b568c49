# SPDX-License-Identifier: Apache-2.0
import contextlib
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from megatron_core.errors import ConfigError, DataError
from megatron_core.parallel.context import Group, ParallelContext, single_process_context
from megatron_core.training.batch_schedule import BatchSchedule, Stage
from megatron_core.training.run_data import open_data, open_source, training_plans, training_source
from tests.e2e.proof import FAMILIES, config_of

GPT2 = FAMILIES["gpt2"]


def at(tp: tuple[int, int] = (0, 1), pp: tuple[int, int] = (0, 1), dp: tuple[int, int] = (0, 1)) -> ParallelContext:
    """A context at these (coordinate, size)s, without process groups."""
    axes = {"tp": tp, "pp": pp, "dp": dp}
    groups = {name: Group(name, tuple(range(size)), coordinate) for name, (coordinate, size) in axes.items()}
    return replace(single_process_context(), groups=groups)


def test_plans_follow_a_ramp_from_any_point() -> None:
    config = config_of(GPT2, 2)
    ramp = BatchSchedule((Stage(0, 2), Stage(4, 4), Stage(8, 6)))
    plans = list(islice(training_plans(config, at(dp=(1, 2)), ramp, 0), 4))
    assert plans == [((1,),), ((3,),), ((5, ), (7,)), ((9,), (11,), (13,))]  # fmt: skip
    assert list(islice(training_plans(config, at(dp=(1, 2)), ramp, 8), 1)) == plans[3:]


@pytest.mark.parametrize(
    ("ctx", "more", "reads"),
    [
        (at(), "", True),
        (at(tp=(1, 2)), "", False),
        (at(pp=(0, 3)), "", True),
        (at(pp=(1, 3)), "", False),
        (at(pp=(2, 3)), "", True),
        (at(pp=(1, 3)), "--reset-position-ids", True),
        (at(pp=(1, 3), tp=(1, 2)), "--reset-attention-mask", False),
    ],
)
def test_who_reads_data(ctx: ParallelContext, more: str, reads: bool) -> None:
    config = config_of(f"{GPT2} {more}", 1)
    data = open_data(config)
    source = open_source(config, ctx, data, data.datasets.train, iter([]))
    with pytest.raises(StopIteration) if reads else contextlib.nullcontext():
        source.skip()  # there is no step to be passed over, which only a reader notices


def test_a_model_may_have_more_ids_than_its_tokenizer() -> None:
    flags = GPT2.replace("--vocab-size 61", "--tokenizer-type ByteTokenizer")
    assert open_data(config_of(flags, 1)).vocab_size == 257
    data = open_data(config_of(f"{flags} --vocab-size 300", 1))
    assert (data.vocab_size, data.rules.vocab_size) == (300, 300)


def test_missing_data_is_found_before_anything_is_built() -> None:
    with pytest.raises(DataError, match="nowhere"):
        open_data(config_of("--data-path /nowhere --tokenizer-type ByteTokenizer", 1))


def test_tasks_are_read_with_the_data(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"text": "It is {number}"}}\n' for number in range(5)))
    flags = f"--mock-data --tokenizer-type ByteTokenizer --eval-tasks lambada={rows}"
    (task,) = open_data(config_of(f"{flags} --eval-tasks-limit 3", 1)).tasks
    assert (task.asked.task.name, len(task.asked.questions)) == ("lambada", 3)
    assert open_data(config_of(GPT2, 1)).tasks == []
    rows.write_text('{"text": 1}\n')
    with pytest.raises(DataError, match=r"rows.jsonl:1: text is 1, not text"):
        open_data(config_of(flags, 1))
    with pytest.raises(ConfigError, match="there is no task 'lambda'"):
        open_data(config_of(flags.replace("lambada", "lambda"), 1))


def test_a_source_starts_at_any_sample_and_passes_over_steps() -> None:
    config = config_of(GPT2, 1)
    data, ctx, schedule = open_data(config), single_process_context(), BatchSchedule((Stage(0, 2),))
    source, later = (training_source(config, ctx, data, schedule, consumed) for consumed in (0, 4))
    source.skip()
    source.skip()
    plan = next(training_plans(config, ctx, schedule, 4))
    assert [m.tokens.tolist() for m in source.step(plan, None)] == [m.tokens.tolist() for m in later.step(plan, None)]
    source.close()
    later.close()
