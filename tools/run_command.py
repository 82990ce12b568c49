# SPDX-License-Identifier: Apache-2.0
"""From what a tool does to its exit code: what the user can mend is one line, an interruption another."""

import sys
from collections.abc import Callable

from megatron_core.errors import UserError

BAD_INPUT, INTERRUPTED = 2, 130


def run_command(command: Callable[[], None], *, interrupted: str = "interrupted") -> int:
    """Exit code: 0 done, 2 bad input, 130 interrupted; `interrupted`: what is said then."""
    try:
        command()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
    return 0
