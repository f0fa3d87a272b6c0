"""How a script of the tests ends.

The native threads of the libraries (Arrow's readers, the client's runtime) may still run while the interpreter is torn
down, and then abort the process: "terminate called without an active exception", after everything was said. So a script
says what it has to say and leaves without a teardown.
"""

import os
import sys
import traceback


def run(main):
    """Runs `main` and ends the process with what it returns, 0 for nothing, 1 if it raises."""
    try:
        code = main() or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
