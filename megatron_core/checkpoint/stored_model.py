# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of ours, open for those who hand its weights to other programs: whole tensors by parameter name."""

import dataclasses
from pathlib import Path
from types import TracebackType

import torch

from megatron_core.checkpoint.directory import read_manifest, step_directory
from megatron_core.checkpoint.find import find_newest
from megatron_core.checkpoint.list_steps import split_step_path
from megatron_core.checkpoint.manifest import TensorEntry
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import Rectangle, whole
from megatron_core.checkpoint.saved_config import config_from_json
from megatron_core.config.data import DataConfig
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError

_EMBEDDING = "embedding.tokens.weight"


class StoredModel:
    """The weights of one checkpoint with their configuration. Use as a context manager."""

    def __init__(self, path: Path, dtype: torch.dtype | None = None) -> None:
        """`path`: a step_* directory, or one that holds some, of which the newest usable counts. `dtype`: what weights
        are wanted in; None: what each is stored in. Raises CheckpointError where there is no usable checkpoint.
        """
        root, step = split_step_path(path)
        manifest = find_newest(root).manifest if step is None else read_manifest(root, step)
        if manifest is None:
            raise CheckpointError(f"{path} holds no checkpoint")
        self.directory, self.manifest = step_directory(root, manifest.step), manifest
        self._entries = {entry.name: entry for entry in manifest.tensors}
        self._reader = CheckpointReader(self.directory, manifest)
        self._dtype = dtype
        config = config_from_json(manifest.config)
        self.data: DataConfig = config.data
        # The manifest has --vocab-size as it was given; the table has as many rows as the tokenizer made of it.
        self.model: ModelConfig = dataclasses.replace(config.model, vocab_size=self.shape(_EMBEDDING)[0])

    def __enter__(self) -> "StoredModel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.__exit__(kind, error, trace)

    @property
    def names(self) -> list[str]:
        """Names of all weights, without section, in order."""
        return sorted(name.removeprefix("model/") for name in self._entries if name.startswith("model/"))

    def shape(self, name: str) -> tuple[int, ...]:
        """Global shape of a weight. Raises CheckpointError where there is none of that name."""
        return self._entry(name).shape

    def dtype(self, name: str) -> torch.dtype:
        """What `read` gives a weight in. Raises as `shape`."""
        stored: torch.dtype = getattr(torch, self._entry(name).dtype)
        return stored if self._dtype is None else self._dtype

    def read(self, name: str) -> torch.Tensor:
        """A whole weight on the CPU. Raises CheckpointError where it is missing or damaged."""
        values = torch.empty(self.shape(name), dtype=self.dtype(name))
        self.fill(values, name)
        return values

    def fill(self, target: torch.Tensor, name: str, rectangle: Rectangle | None = None) -> None:
        """Copy a weight, or a rectangle of it, into a tensor of its shape, which may be any view. Raises as `read`."""
        entry = self._widest(name, target.dtype)
        self._reader.fill(target, entry.name, whole(entry.shape) if rectangle is None else rectangle)

    def _widest(self, name: str, wanted: torch.dtype) -> TensorEntry:
        """The weight, or its master where more bits are wanted than the weight has."""
        entry = self._entry(name)
        return entry if wanted.itemsize <= entry.itemsize else self._entries.get(f"master/{name}", entry)

    def _entry(self, name: str) -> TensorEntry:
        entry = self._entries.get(f"model/{name}")
        if entry is None:
            raise CheckpointError(f"{self.directory} holds no weight {name}")
        return entry
