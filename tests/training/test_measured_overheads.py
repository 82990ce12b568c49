# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.config.run import RunConfig
from megatron_core.training import measured_overheads
from megatron_core.training.measured_overheads import measure_overheads
from tests.planner.measured import cpu


def test_what_is_left_of_tiny_steps_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(config: RunConfig) -> float:
        layers, microbatches = config.model.num_layers, config.training.global_batch_size
        assert microbatches is not None
        return 1.0 + 0.5 + microbatches * (0.3 + layers * 0.06)

    monkeypatch.setattr(measured_overheads, "_measured", taken)
    monkeypatch.setattr(measured_overheads, "_predicted", lambda config, hardware: 1.0)
    found = {one.name: one.seconds for one in measure_overheads(cpu({}), "fp32")}
    assert found["step"] == pytest.approx(0.5)
    assert (found["layer"], found["layer backward"]) == (pytest.approx(0.02), pytest.approx(0.04))
    assert (found["microbatch"], found["microbatch backward"]) == (pytest.approx(0.1), pytest.approx(0.2))


def test_predictions_beyond_what_was_measured_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_overheads, "_measured", lambda config: 1.0)
    monkeypatch.setattr(measured_overheads, "_predicted", lambda config, hardware: 2.0)
    assert all(one.seconds == 0 for one in measure_overheads(cpu({}), "fp32"))
