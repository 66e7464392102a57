"""Tries on this machine whether code in a sandbox can do what it must not."""

import os
import tempfile

from grpo.rollout.sandbox.confinement import Limits
from grpo.rollout.sandbox.sandbox import Sandbox

# What the code would do -> code that ends without an error if it can. {secret} is a file, {parent} this process.
ATTEMPTS = {
    "reach the network": "import socket; socket.socket()",
    "start a process": "import os; os.fork()",
    "start another program": "import os; os.execv('/bin/true', ['true'])",
    "start a thread": "import _thread; _thread.start_new_thread(print, ())",
    "send a signal": "import os; os.kill({parent}, 0)",
    "write to the disk": "open('/var/tmp/sandbox-probe', 'w')",
    "remove files": "import os; os.unlink({secret!r})",
    "truncate files": "import os; os.truncate({secret!r}, 0)",
    "read files": "open({secret!r}).read()",
    "read the run's environment": "open('/proc/{parent}/environ', 'rb').read()",
    "raise its limits": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (9999, 9999))",
    "allocate without limit": "bytearray({memory})",
}


async def find_escapes(limits: Limits) -> list[str]:
    """Return what code can do that it must not.

    Raises:
        Unconfined: if no sandbox can start here.
        RuntimeError: if a sandbox cannot calculate.
    """
    sandbox = await Sandbox.start(limits)
    try:
        if (await sandbox.run("6 * 7")).text != "42\n":
            raise RuntimeError("a sandbox does not calculate")
        with tempfile.NamedTemporaryFile() as secret:
            values = {"secret": secret.name, "parent": os.getpid(), "memory": limits.memory_mb * 2**20 + 2**20}
            tried = {what: await sandbox.run(code.format(**values)) for what, code in ATTEMPTS.items()}
    finally:
        sandbox.close()
    return [what for what, output in tried.items() if not output.failed]
