#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Say what a file of this project holds: a data set or a checkpoint.

tools/inspect.py PREFIX [--tokenizer-type ...] [--samples 3] [--seq-length 2048 --train-samples 1000000]
    documents, tokens, epochs that a plan would use, decoded samples of PREFIX.bin and PREFIX.idx

tools/inspect.py CHECKPOINT [--tensors] [--verify] [--compare OTHER] [--tensor NAME]
    of a run's directory, the steps in it; of a step_* directory, what was saved, whether it is undamaged,
    how it differs from another one, and the statistics of a tensor
"""

import os
import sys

if __name__ == "__main__":
    # The folder of a script comes first on the path, and this file has the name of a standard module.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if words else 2)
    from tools.names_checkpoint import names_checkpoint

    if names_checkpoint(words):
        from tools.inspect_checkpoint import main
    else:
        from tools.inspect_dataset import main
    sys.exit(main(words))
elif __name__ == "inspect":
    # Another script of this folder imports the standard module and has found this file: become that module.
    from importlib.machinery import SourceFileLoader

    SourceFileLoader("inspect", os.path.join(os.path.dirname(os.__file__), "inspect.py")).exec_module(
        sys.modules["inspect"]
    )
