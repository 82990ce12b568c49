# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import pytest
import torch

from megatron_core.parallel.context import single_process_context
from megatron_core.training.out_of_memory import advised_out_of_memory
from tests.e2e.proof import FAMILIES, config_of


def test_an_error_of_a_gpu_without_memory_says_what_the_planner_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(total_memory=10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    config = config_of(FAMILIES["gpt2"], 1)
    with pytest.raises(torch.OutOfMemoryError) as caught, advised_out_of_memory(config, single_process_context(), 61):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
    message = str(caught.value)
    assert message.startswith("CUDA out of memory. Tried to allocate 2 GiB.\nThe planner expects 1.1 GB of 1.0 GB")
    assert "--optimizer-cpu-offload" in message


def test_other_errors_stay_what_they_are() -> None:
    config, ctx = config_of(FAMILIES["gpt2"], 1), single_process_context()
    with pytest.raises(RuntimeError, match="something else"), advised_out_of_memory(config, ctx, 61):
        raise RuntimeError("something else")
