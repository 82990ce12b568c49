#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Say what a file of this project holds: documents, tokens, epochs that a plan would use, decoded samples.

    tools/inspect.py PREFIX [--tokenizer-type ...] [--samples 3] [--seq-length 2048 --train-samples 1000000]

PREFIX is a data set, a pair PREFIX.bin and PREFIX.idx.
"""

import os
import sys

if __name__ == "__main__":
    # The folder of a script comes first on the path, and this file has the name of a standard module.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from tools.inspect_dataset import main

    sys.exit(main(sys.argv[1:]))
elif __name__ == "inspect":
    # Another script of this folder imports the standard module and has found this file: become that module.
    from importlib.machinery import SourceFileLoader

    SourceFileLoader("inspect", os.path.join(os.path.dirname(os.__file__), "inspect.py")).exec_module(
        sys.modules["inspect"]
    )
