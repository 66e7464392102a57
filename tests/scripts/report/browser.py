"""A headless Chromium, spoken to over a pipe in its DevTools protocol: no driver, no port, no further package."""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 60
OPTIONS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # required for root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    # It makes no requests of its own.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
)


def find_program() -> str | None:
    """The browser of this machine, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """One page of a browser that was started anew.

    Attributes:
        errors: exceptions and error messages of the page.
        requests: the addresses that it asked for.
    """

    def __init__(self, folder: Path) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._ids = itertools.count(1)
        self._loaded = False
        self._left = b""
        command = [find_program() or "", *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        # Chromium reads commands from descriptor 3 and answers on 4: ours are larger, so that none is overwritten.
        (reads, self._write), (self._read, writes) = os.pipe(), os.pipe()
        theirs = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (reads, writes)]
        wrapper = ["bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "bash", *command]
        self._process = subprocess.Popen(wrapper, pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for descriptor in (reads, writes, *theirs):
            os.close(descriptor)
        self._session: str | None = None
        pages = self.send("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command, and return its result."""
        message = {"id": next(self._ids), "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + SECONDS
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._left += part
        line, _, self._left = self._left.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.errors.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(str(parameters["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loaded = True

    def open(
        self, page: Path, width: int = 1280, height: int = 900, scheme: str = "light", touch: bool = False
    ) -> None:
        """Open a file, as wide as so many pixels, in the light or the dark scheme."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._loaded = False
        self.send("Page.navigate", url=page.absolute().as_uri())
        while not self._loaded:
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in JavaScript, as JSON can hold it."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def send_mouse(self, kind: str, x: float, y: float, **details: Any) -> None:
        """Move ("mouseMoved"), press ("mousePressed") or release ("mouseReleased") the mouse."""
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **details)

    def screenshot(self, file: Path) -> None:
        """Write the whole page as a PNG."""
        image = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(image["data"]))

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(SECONDS)
        os.close(self._read)
        os.close(self._write)
