"""What the plot scripts share: matplotlib, from whichever Python has it.

The first python3 in PATH may be one of pyenv's or a virtual environment's, without the matplotlib that the system's own
has.  The script is then started again with that one.
"""

import os
import sys

SYSTEM = "/usr/bin/python3"

try:
    import matplotlib
    import numpy  # noqa: F401  matplotlib needs it too
except ImportError as error:
    if "VIT_SYSTEM_PYTHON" not in os.environ and os.access(SYSTEM, os.X_OK):
        for name in ("PYTHONHOME", "PYTHONPATH"):  # they are for the other one
            os.environ.pop(name, None)
        os.environ["VIT_SYSTEM_PYTHON"] = "tried"
        os.execv(SYSTEM, [SYSTEM, *sys.argv])
    sys.exit(f"{os.path.basename(sys.argv[0])}: {error}: run sh scripts/deps.sh demo, which installs python3-matplotlib")

matplotlib.use("Agg")
