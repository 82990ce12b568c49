# SPDX-License-Identifier: Apache-2.0
import datetime
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from megatron_core.checkpoint.manifest import RankFile
from megatron_core.checkpoint.reports import Reports
from megatron_core.checkpoint.writer import write_rank_file
from megatron_core.errors import CheckpointError
from tests.checkpoint import small_checkpoint

NOBODY_LEFT = threading.Event()


def _written(tmp_path: Path) -> list[RankFile]:
    shards = small_checkpoint.shards()
    return [write_rank_file(tmp_path, f"{rank}.safetensors", part) for rank, part in enumerate(shards)]


def test_rank_0_gets_what_all_wrote_in_order_of_rank(tmp_path: Path) -> None:
    store, written = dist.HashStore(), _written(tmp_path)
    for rank in (1, 0):
        Reports(store.clone(), "a", 2).wrote(rank, written[rank])
    assert Reports(store, "a", 2).collect(NOBODY_LEFT) == written
    assert store.num_keys() == 0, "keys go after use"


def test_it_waits_for_the_last(tmp_path: Path) -> None:
    store, written = dist.HashStore(), _written(tmp_path)
    reports = Reports(store, "a", 2)
    reports.wrote(0, written[0])
    later = threading.Timer(0.05, lambda: Reports(store.clone(), "a", 2).wrote(1, written[1]))
    later.start()
    assert reports.collect(NOBODY_LEFT) == written
    later.join()


def test_saves_do_not_mix(tmp_path: Path) -> None:
    store, written = dist.HashStore(), _written(tmp_path)
    Reports(store, "old", 1).failed(0, "of the save before")
    Reports(store, "new", 1).wrote(0, written[0])
    assert Reports(store, "new", 1).collect(NOBODY_LEFT) == written[:1]


def test_failures_name_the_rank(tmp_path: Path) -> None:
    reports = Reports(dist.HashStore(), "a", 3)
    reports.wrote(0, _written(tmp_path)[0])
    reports.failed(1, "cannot write: no space")
    reports.failed(2, "cannot write: no space")
    with pytest.raises(CheckpointError, match=r"^\[rank 1\] cannot write: no space \(1 more ranks failed\)$"):
        reports.collect(NOBODY_LEFT)


def test_a_run_of_one_rank_names_none() -> None:
    reports = Reports(dist.HashStore(), "a", 1)
    reports.failed(0, "no space")
    with pytest.raises(CheckpointError, match=r"^no space$"):
        reports.collect(NOBODY_LEFT)


def test_a_silent_rank_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    store, written = dist.HashStore(), _written(tmp_path)
    store.set_timeout(datetime.timedelta(milliseconds=30))
    reports = Reports(store, "a", 3)
    reports.wrote(0, written[0])
    reports.wrote(2, written[1])
    with pytest.raises(CheckpointError, match=r"^\[rank 1\] has not written its file after 0.03 s$"):
        reports.collect(NOBODY_LEFT)
    assert store.num_keys() == 0


def test_nobody_waits_any_more() -> None:
    left = threading.Event()
    left.set()
    with pytest.raises(CheckpointError, match="the run ended before all ranks had written"):
        Reports(dist.HashStore(), "a", 1).collect(left)
