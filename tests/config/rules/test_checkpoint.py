# SPDX-License-Identifier: Apache-2.0
import pytest


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stop_on_save_failure": True}, "--stop-on-save-failure needs --save DIR: nothing is saved"),
        ({"most_recent_k": 0}, "--most-recent-k 0 would keep no checkpoint: set 1 or more, or -1 for all"),
        ({"most_recent_k": -2}, "--most-recent-k is -2; it must be >= -1"),
        ({"save_retain_interval": 30}, "--save-retain-interval 30 needs a --save-interval that divides it"),
        (
            {"save": "out", "save_interval": 20, "save_retain_interval": 30},
            "--save-retain-interval 30 is not a multiple of --save-interval 20: set 40",
        ),
        ({"ckpt_step": 7}, "--ckpt-step 7: set --load DIR, the directory of the checkpoint"),
        (
            {"exit_on_missing_checkpoint": True, "use_checkpoint_args": True},
            "--exit-on-missing-checkpoint and --use-checkpoint-args: set --load DIR, the directory of the checkpoint",
        ),
        (
            {"load": "out", "override_opt_param_scheduler": True, "use_checkpoint_opt_param_scheduler": True},
            "--override-opt-param-scheduler and --use-checkpoint-opt-param-scheduler exclude each other: "
            "take the run's schedules or the checkpoint's",
        ),
    ],
)
def test_each_rule(complaints, values, message):
    assert complaints(**values) == [message]


@pytest.mark.parametrize(
    "values",
    [
        {"save": "out"},  # saved only where the run stops
        {"save": "out", "save_interval": 10, "save_retain_interval": 30, "most_recent_k": -1},
        {"load": "out", "ckpt_step": 7, "exit_on_missing_checkpoint": True, "use_checkpoint_args": True},
        # Scripts carry these where nothing is saved or loaded.
        {"save_interval": 1000, "save_optim": False},
        {"finetune": True, "load_optim": False, "load_rng": False, "override_opt_param_scheduler": True},
    ],
)
def test_what_is_fine(complaints, values):
    assert complaints(**values) == []
