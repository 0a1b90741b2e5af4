"""The command line. Every command imports the library only when it runs.

Exit codes: 0 done, 1 failed, 2 invalid request, 130 stopped with Ctrl-C (output already
written stays).
"""

import os
import signal
import sys


def main() -> None:
    """Run the command line. Always ends in SystemExit."""
    if os.getpid() == 1:  # in a container the system ignores SIGTERM without a handler
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # commands of other packages import from this one
    from foreword.cli.app import app
    from foreword.cli.common import runtime

    runtime.run(app)
