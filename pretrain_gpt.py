# SPDX-License-Identifier: Apache-2.0
"""Pretrain a GPT: `torchrun --nproc-per-node N pretrain_gpt.py --config FILE.yaml [--flags]`, or under srun."""

import sys
import time

if __name__ == "__main__":
    started = time.monotonic()  # before torch is imported, which takes seconds
    from megatron_core.training.pretrain import pretrain

    sys.exit(pretrain(sys.argv[1:], started))
