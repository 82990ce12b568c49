# SPDX-License-Identifier: Apache-2.0
"""Against a stand-in for wandb: what it is told, and that nothing it does reaches the training run."""

import logging
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from megatron_core.config.logging import LoggingConfig
from megatron_core.errors import ConfigError
from megatron_core.training import wandb_tracker
from megatron_core.training.wandb_tracker import WandbTracker

CONFIG = LoggingConfig(wandb_project="gpt", wandb_entity="team", wandb_exp_name="run 1")


class FakeError(Exception):
    """wandb's own base error."""


class FakeWandb(types.ModuleType):
    """Records what it is told; the errors are raised by a quiet `login`, an online `init`, and `log`."""

    Error = FakeError

    def __init__(
        self,
        key: str | None,
        *,
        login_error: Exception | None = None,
        online_error: Exception | None = None,
        log_error: Exception | None = None,
    ) -> None:
        super().__init__("wandb")
        self.api = types.SimpleNamespace(api_key=key)
        self.opened: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = False
        self.login_error, self._online_error, self._log_error = login_error, online_error, log_error

    def login(self, timeout: int | None = None) -> bool:
        """Would ask at the terminal."""
        raise AssertionError("must not be called where it cannot be told to be quiet")

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def init(self, **options: Any) -> "FakeWandb":
        self.opened.append(options)
        if self._online_error is not None and "mode" not in options:
            raise self._online_error
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        if self._log_error is not None:
            raise self._log_error
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished = True


class QuietLoginWandb(FakeWandb):
    """Newer wandb, whose login can be told not to ask."""

    def login(self, timeout: int | None = None, prompt: bool = True) -> bool:  # type: ignore[override]
        assert not prompt
        if self.login_error is not None:
            raise self.login_error
        return self.api.api_key is not None


def run(fake: FakeWandb, save: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    monkeypatch.setitem(sys.modules, "wandb", fake)
    tracker = WandbTracker(CONFIG, str(save), {"model": {"num_layers": 2}})
    for step in (1, 2):
        tracker.log({"loss": float(step)}, step)
    tracker.close()
    return fake


@pytest.mark.parametrize("kind", [FakeWandb, QuietLoginWandb])
def test_online_with_a_key(kind: type[FakeWandb], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = run(kind(key="secret"), tmp_path, monkeypatch)
    (options,) = fake.opened
    assert "mode" not in options
    assert {name: options[name] for name in ("project", "entity", "name", "dir")} == {
        "project": "gpt",
        "entity": "team",
        "name": "run 1",
        "dir": str(tmp_path),
    }
    assert options["config"] == {"model": {"num_layers": 2}}
    assert fake.logged == [(1, {"loss": 1.0}), (2, {"loss": 2.0})]
    assert fake.finished


@pytest.mark.parametrize("kind", [FakeWandb, QuietLoginWandb])
def test_offline_without_a_key(kind: type[FakeWandb], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = run(kind(key=None), tmp_path, monkeypatch)
    assert [options["mode"] for options in fake.opened] == ["offline"]
    assert len(fake.logged) == 2
    assert fake.finished


def test_offline_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = run(FakeWandb(key="secret", online_error=FakeError("no such host\nhint")), tmp_path, monkeypatch)
    assert [options.get("mode") for options in fake.opened] == [None, "offline"]
    assert len(fake.logged) == 2
    assert caplog.messages == ["wandb goes offline: no such host"]


def test_offline_where_the_login_needs_the_network_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = QuietLoginWandb(key="secret", login_error=FakeError("no such host"))
    run(fake, tmp_path, monkeypatch)
    assert [options["mode"] for options in fake.opened] == ["offline"]
    assert caplog.messages == ["wandb goes offline: no such host"]


def test_any_failure_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="megatron_core")
    run(FakeWandb(key="secret", log_error=ValueError("surprise")), tmp_path, monkeypatch)
    assert caplog.messages == ["wandb stopped (ValueError: surprise); training goes on, metrics.jsonl has the numbers"]


def test_one_that_hangs_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()
    fake = FakeWandb(key="secret")
    monkeypatch.setattr(fake, "init", lambda **_: released.wait(30))
    monkeypatch.setattr(wandb_tracker, "CLOSE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(wandb_tracker, "MOST_WAITING_RECORDS", 2)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    tracker = WandbTracker(CONFIG, str(tmp_path), {})
    for step in range(100):
        tracker.log({"loss": 1.0}, step)
    tracker.close()
    released.set()
    assert caplog.messages == ["wandb did not finish within 0 s and is left behind"]


def test_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        WandbTracker(CONFIG, str(tmp_path), {})


def test_says_what_to_set_without_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb(key=None))
    with pytest.raises(ConfigError, match="set --save or --wandb-save-dir"):
        WandbTracker(CONFIG, None, {})
