"""Common code of the plot scripts: finds a Python with matplotlib.

The first python3 in PATH may be from pyenv or a virtual environment, without the system's matplotlib.  The script is
then started again with that one.
"""

import os
import sys

SYSTEM = "/usr/bin/python3"

try:
    import matplotlib
    import numpy  # noqa: F401  matplotlib needs it too
except ImportError as error:
    if "VIT_SYSTEM_PYTHON" not in os.environ and os.access(SYSTEM, os.X_OK):
        for name in ("PYTHONHOME", "PYTHONPATH"):  # they are meant for the other Python
            os.environ.pop(name, None)
        os.environ["VIT_SYSTEM_PYTHON"] = "tried"
        os.execv(SYSTEM, [SYSTEM, *sys.argv])
    sys.exit(f"{os.path.basename(sys.argv[0])}: {error}: run sh scripts/deps.sh demo, which installs python3-matplotlib")

matplotlib.use("Agg")
