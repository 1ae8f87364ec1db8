"""`torchrun --nproc-per-node N -m trainer TASK ...`: `surefoot train` in several processes.

It takes the same arguments. Without torchrun it is `surefoot train`.
"""

from __future__ import annotations

import os
import sys

from robot_runtime.cli import main

if __name__ == "__main__":
    code = main(["train", *sys.argv[1:]])
    if code and os.environ.get("WORLD_SIZE", "1") != "1":
        # Threads of a group that has lost a process may never end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
