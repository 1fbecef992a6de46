"""`python -m tests.ui`: fetch what the tests of the views need, and run them."""

from __future__ import annotations

import subprocess
import sys

from tests.ui.environment import HERE, prepare


def main() -> int:
    """Prepare, and hand the rest of the command line to pytest; its exit code."""
    try:
        prepare()
    except subprocess.CalledProcessError as error:
        print(f"ui: {' '.join(error.cmd)} failed (its message is above)", file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "pytest", str(HERE), *sys.argv[1:]]
    return subprocess.run(command, check=False).returncode


sys.exit(main())
