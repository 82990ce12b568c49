# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from megatron_core.checkpoint.saved_config import config_from_json, config_to_json
from megatron_core.config.run import RunConfig
from megatron_core.errors import CheckpointError
from tests.e2e.proof import FAMILIES, config_of

GPT2 = FAMILIES["gpt2"]


def config(flags: str) -> RunConfig:
    return config_of(f"{flags} --load here", 1)


@pytest.mark.parametrize(
    "flags", [*FAMILIES.values(), f"{GPT2} --lr-decay-style cosine --rampup-batch-size 2 2 20 --profile-ranks 0 1"]
)
def test_a_config_comes_back_from_json(flags: str) -> None:
    assert config_from_json(json.loads(json.dumps(config_to_json(config(flags))))) == config(flags)


def test_fields_that_one_side_does_not_know() -> None:
    saved = config_to_json(config(GPT2))
    del saved["model"]["swiglu"], saved["logging"]
    saved["model"]["of_the_future"] = saved["elsewhere"] = 3
    assert config_from_json(saved).model == config(GPT2).model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": 3}, "^the checkpoint's config: model is 3, not an object$"),
        ({"optim": {"lr": "fast"}}, r"^the checkpoint's config: optim\.lr is 'fast', not a number$"),
        ({"model": {"normalization": "No"}}, r"model\.normalization is 'No'; choose LayerNorm or RMSNorm"),
        ({"training": {"rampup_batch_size": [1, 2]}}, r"training\.rampup_batch_size takes 3 values, not 2"),
    ],
)
def test_a_config_that_no_run_had(change: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        config_from_json(config_to_json(config(GPT2)) | change)
