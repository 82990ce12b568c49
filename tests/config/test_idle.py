# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.config.checkpoint import CheckpointConfig
from megatron_core.config.idle import idle_settings

NOTHING_SAVED = "without effect, since nothing is saved without --save DIR: "
NOTHING_LOADED = "without effect, since nothing is loaded without --load DIR: "


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({}, []),
        ({"save_interval": 9, "save_optim": False}, [f"{NOTHING_SAVED}--save-interval, --no-save-optim"]),
        (
            {"save_interval": 9, "save_retain_interval": 9, "most_recent_k": 2},
            [f"{NOTHING_SAVED}--save-interval, --save-retain-interval, --most-recent-k"],
        ),
        ({"most_recent_k": -1}, []),  # as a printed config has it
        ({"save": "out", "save_interval": 9, "save_retain_interval": 9, "save_optim": False}, []),
        (
            {"finetune": True, "load_optim": False, "load_rng": False, "override_opt_param_scheduler": True},
            [f"{NOTHING_LOADED}--finetune, --no-load-optim, --no-load-rng, --override-opt-param-scheduler"],
        ),
        ({"load": "out", "load_optim": False, "load_rng": False, "override_opt_param_scheduler": True}, []),
        ({"load": "out", "finetune": True, "use_checkpoint_opt_param_scheduler": True}, []),
        (
            {"save_interval": 9, "load_rng": False},
            [f"{NOTHING_SAVED}--save-interval", f"{NOTHING_LOADED}--no-load-rng"],
        ),
    ],
)
def test_what_has_no_effect_is_said(values, lines):
    assert list(idle_settings(CheckpointConfig(**values))) == lines
