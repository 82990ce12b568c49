# SPDX-License-Identifier: Apache-2.0
"""What stands in for an object of a class that is not known here, or for a call that was not made."""

from megatron_core.checkpoint.plain import quote


class Inert:
    """A name, what would have been made of it, and the state that would have been set. It does nothing.

    A plain class, so that it is equal to itself alone and may be a key.
    """

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[object, ...] | None = None) -> None:
        """`name`: module and attribute; `arguments`: those of the call, None for the name itself."""
        self.name = name
        self.arguments = arguments
        self.state: object = None

    def __repr__(self) -> str:
        return f"<{quote(self.name)[1:-1]}, not made>"

    @property
    def fields(self) -> dict[str, object]:
        """Its attributes as they were saved; empty where the state is something else."""
        return self.state if isinstance(self.state, dict) else {}
