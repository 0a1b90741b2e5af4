"""The command line. Every command imports the library only when it runs.

Exit codes: 0 done, 1 failed, 2 invalid request, 130 stopped with Ctrl-C (output already
written stays).
"""

import os
import signal


def main() -> None:
    """Run the command line. Always ends in SystemExit."""
    if os.getpid() == 1:  # of a container: the system ignores SIGTERM without a handler
        # an exception may be raised in a destructor, which ignores it
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    # commands of other packages import from this one
    from foreword.cli.app import app
    from foreword.cli.common import runtime

    runtime.run(app)
