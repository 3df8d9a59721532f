"""Tasks that print, and ``psched logs -f``, which shows what they print."""

from support.owned_process import OwnedProcess
from support.waiting import wait_until

PRINTS = """
    import os
    import subprocess
    import sys
    import time
    from pathlib import Path

    from psched.application import Base, Dispatch

    FOLDER = Path(__file__).parent


    class Prints(Base):
        def run(self):
            data = self.task.data
            sys.stdout.write(data.get("text", ""))
            os.write(1, bytes.fromhex(data.get("bytes", "")))
            for command in data.get("commands", ()):
                subprocess.run(command, shell=True, check=False)
            for gate, text in data.get("gates", ()):
                while not (FOLDER / gate).exists():
                    time.sleep(0.01)
                os.write(1, (text * data.get("times", 1)).encode())
            if self.task.attempt <= data.get("fail", 0):
                raise ValueError("as it was told")


    class Printing(Dispatch):
        routes = {"prints": Prints}
"""


def gated(*gates):
    return {"text": "", "gates": [[gate, f"{gate} is open\n"] for gate in gates]}


class Following(OwnedProcess):
    """A command ``psched logs -f``."""

    def __init__(self, service, *arguments, out="followed"):
        self.path = service.folder / out
        super().__init__(
            [*service.psched_command, "logs", *arguments],
            output=self.path,
            cwd=service.folder,
            env=service.env,
        )

    @property
    def text(self):
        return self.path.read_text()

    def wait_for(self, text):
        wait_until(lambda: text in self.text, what=f"{text!r} in {self.text!r}")
