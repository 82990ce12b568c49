# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from megatron_core.checkpoint.directory import prepare, publish
from megatron_core.checkpoint.manifest import merge
from megatron_core.config.run import RunConfig
from megatron_core.training.restart import restarted
from tests.e2e.proof import FAMILIES, config_of


def config(flags: str) -> RunConfig:
    return config_of(f"{FAMILIES['gpt2']} {flags}", 1)


def saved(root: Path) -> Path:
    """A directory with a checkpoint, as far as a restart looks."""
    prepare(root, 5)
    publish(root, merge(5, [], state={}, config={}))
    return root


def test_a_first_start_does_what_it_was_told(tmp_path: Path) -> None:
    first = config(f"--save {saved(tmp_path)} --finetune --load elsewhere")
    assert restarted(first, 0) == first


def test_a_restart_goes_on_from_what_the_job_has_saved(tmp_path: Path) -> None:
    again = restarted(config(f"--save {saved(tmp_path)}"), 1).checkpoint
    assert again.load == again.save == str(tmp_path)
    flags = f"--save {tmp_path} --load elsewhere --ckpt-step 7 --finetune --no-load-optim --no-load-rng"
    again = restarted(config(flags), 2).checkpoint
    assert (again.load, again.ckpt_step, again.finetune, again.load_optim, again.load_rng) == (
        str(tmp_path), None, False, True, True
    )  # fmt: skip


def test_a_restart_before_the_first_checkpoint_begins_as_before(tmp_path: Path) -> None:
    prepare(tmp_path, 5)
    for flags in (f"--save {tmp_path} --load elsewhere --finetune", "--load elsewhere", ""):
        assert restarted(config(flags), 1) == config(flags)
