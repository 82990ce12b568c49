# SPDX-License-Identifier: Apache-2.0
"""TensorBoard events (`--tensorboard-dir`)."""

from collections.abc import Mapping

from megatron_core.errors import ConfigError


class TensorBoardTracker:
    """Writes scalars to an event file; its own thread flushes them every two minutes."""

    def __init__(self, directory: str, queue_size: int) -> None:
        """Raises ConfigError when the tensorboard package is not installed."""
        try:
            # Imported here: it costs a second of start-up and belongs to an extra.
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "--tensorboard-dir needs the package tensorboard, which cannot be imported "
                f"({error}): pip install tensorboard, or drop the flag (metrics.jsonl has the same numbers)."
            ) from error
        self._writer = SummaryWriter(log_dir=directory, max_queue=queue_size)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record scalars of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write everything that is still held back."""
        self._writer.close()
