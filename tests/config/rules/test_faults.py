# SPDX-License-Identifier: Apache-2.0
import pytest

SAVED = {"save": "out", "save_interval": 10}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"nan_policy": "skip", "check_for_nan_in_loss_and_grad": False},
            "--nan-policy skip looks for what --no-check-for-nan-in-loss-and-grad leaves unseen: leave one out",
        ),
        (
            {"loss_spike_factor": 3.0},
            "--loss-spike-factor 3.0 is not read with --loss-spike-policy ignore: set stop, skip or rollback",
        ),
        ({"loss_spike_policy": "stop", "loss_spike_factor": 1.0}, "--loss-spike-factor is 1.0; it must be > 1"),
        (
            {"nan_policy": "rollback", "save": "out"},
            "--nan-policy rollback goes back to a checkpoint of this run: set --save DIR and --save-interval N",
        ),
        (
            {"loss_spike_policy": "rollback", "save_interval": 10},
            "--loss-spike-policy rollback goes back to a checkpoint of this run: set --save DIR and --save-interval N",
        ),
        (
            {**SAVED, "nan_policy": "rollback", "save_optim": False},
            "--nan-policy rollback needs the optimizer's state in the checkpoint: leave --no-save-optim out",
        ),
        ({"iterations_to_skip": ("3", "9-7")}, "--iterations-to-skip: '9-7' ends before it begins; write 7-9"),
    ],
)
def test_each_rule(complaints, values, message):
    assert complaints(**values) == [message]


@pytest.mark.parametrize(
    "values",
    [
        {"check_for_nan_in_loss_and_grad": False},
        {"nan_policy": "skip", "loss_spike_policy": "skip", "loss_spike_factor": 3.0},
        {**SAVED, "nan_policy": "rollback", "loss_spike_policy": "rollback"},
        {"iterations_to_skip": ("3", "7-9")},
    ],
)
def test_what_is_fine(complaints, values):
    assert complaints(**values) == []
