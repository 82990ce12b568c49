# SPDX-License-Identifier: Apache-2.0
import pytest

SAMPLES = {"train_iters": None, "train_samples": 1000}
ONEBIT = {"optimizer": "onebit-adam", "onebit_freeze_step": 20}


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"lr_decay_samples": 9}, "--lr-decay-samples does not go with --train-iters: use --lr-decay-iters"),
        ({**SAMPLES, "lr_decay_iters": 9}, "--lr-decay-iters does not go with --train-samples: use --lr-decay-samples"),
        ({**SAMPLES, "lr_warmup_iters": 9}, "--lr-warmup-iters does not go with --train-samples: use --lr-warmup-s"),
        ({"lr_warmup_iters": 9, "lr_warmup_fraction": 0.1}, "--lr-warmup-fraction 0.1 and --lr-warmup-iters 9 exclude"),
        ({"lr_warmup_iters": 101}, "--lr-warmup-iters 101 is longer than the decay, 100 iters"),
        ({**SAMPLES, "lr_warmup_samples": 1001}, "--lr-warmup-samples 1001 is longer than the decay, 1000 samples"),
        ({"lr_decay_style": "WSD"}, "--lr-decay-style WSD needs --lr-wsd-decay-iters"),
        ({"lr_decay_style": "WSD", "lr_wsd_decay_iters": 101}, "--lr-wsd-decay-iters 101 is longer than the whole"),
        ({"min_lr": 0.1}, "--min-lr 0.1 is above --lr 0.001"),
        ({"lr_warmup_init": 0.1}, "--lr-warmup-init 0.1 is above --lr 0.001"),
        ({"end_weight_decay": 0.1}, "need --weight-decay-incr-style linear or cosine"),
        ({"weight_decay_incr_style": "linear", "end_weight_decay": 0.1}, "linear needs --start-weight-decay and"),
        ({"bf16": True, "fp64": True}, "--bf16 and --fp64 exclude each other: choose one precision"),
        ({"optimizer_offload_directory": "/nvme"}, "--optimizer-offload-directory /nvme needs --optimizer-cpu-offload"),
        ({"offload_gradients": "host"}, "--offload-gradients host needs --optimizer-cpu-offload"),
        ({"optimizer_delayed_update_start": 5}, "--optimizer-delayed-update-start 5 needs --optimizer-cpu-offload"),
        (
            {"optimizer_cpu_offload": True, "optimizer_delayed_update_start": 100},
            "--optimizer-delayed-update-start 100 is not before the end of the run",
        ),
        ({**ONEBIT, "optimizer_cpu_offload": True}, "exchanges its momentum on the device: drop --optimizer-cpu-off"),
        ({"optimizer": "onebit-adam"}, "needs --onebit-freeze-step: 15 to 25 % of the run's updates (20 of"),
        ({**ONEBIT, "onebit_freeze_step": 100}, "--onebit-freeze-step 100 is not before the end of the run"),
        ({**ONEBIT, "use_distributed_optimizer": True}, "save at most 1.9 x of the traffic instead of 16 x: leave"),
        ({"onebit_freeze_step": 20}, "--onebit-freeze-step 20 needs --optimizer onebit-adam"),
        ({"fp16": True, "min_loss_scale": 8.0, "initial_loss_scale": 4.0}, "--min-loss-scale 8.0 is above"),
    ],
)  # fmt: skip
def test_each_rule(complaints, values, part):
    (message,) = complaints(**values)
    assert part in message


@pytest.mark.parametrize(
    "values",
    [
        {"lr_warmup_iters": 100},  # all of it
        {"lr_decay_iters": 50, "lr_warmup_iters": 50},
        {**SAMPLES, "lr_warmup_samples": 10, "lr_decay_samples": 500},
        {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 10},
        {"weight_decay_incr_style": "cosine", "start_weight_decay": 0.0, "end_weight_decay": 0.1},
        {"start_weight_decay": 0.01, "end_weight_decay": 0.01},
        ONEBIT,
        {**SAMPLES, **ONEBIT, "onebit_freeze_step": 1000},  # steps there are not known from samples alone
        {"bf16": True, "initial_loss_scale": 0.5},  # read only with fp16, and scripts have it
    ],
)
def test_what_is_fine(complaints, values):
    assert complaints(**values) == []
