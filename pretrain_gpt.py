# SPDX-License-Identifier: Apache-2.0
"""Pretrain a GPT: `torchrun --nproc-per-node N pretrain_gpt.py --config FILE.yaml [--flags]`, or under srun."""

import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn


def leave(run: Callable[[], int]) -> NoReturn:
    """End the process with the code that `run` returns, 1 after an error, without the interpreter's own end.

    That would stop threads in whatever they do: one that is in torch's C++ then, such as the watchdog's, which asks a
    store that may not answer, aborts the process, and a run that was saved and closed would have failed.
    """
    try:
        code = run()
    except SystemExit as ended:  # the help
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    started = time.monotonic()  # before torch is imported, which takes seconds
    from megatron_core.training.pretrain import pretrain

    leave(lambda: pretrain(sys.argv[1:], started))
