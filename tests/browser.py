"""A headless Chromium, steered by the DevTools protocol over a WebSocket."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no browser; `apt-get install chromium` installs one")


class Page:
    """An open page. Every error of its console is in `errors`."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._number = socket, 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        for domain in ("Runtime", "Page", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=600))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if message["method"] == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"])[:500])
        if message["method"] == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.errors.append(json.dumps(parameters["args"])[:500])
        if message["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
        if message["method"] == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, script: str, seconds: float = 600) -> Any:
        """Return the value of an expression once it is true. `seconds` only ends a hang."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"{script} stays {value!r}; errors: {self.errors}"
            time.sleep(0.05)
        return value

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait(f"location.href === {json.dumps(address)} && document.readyState === 'complete'")

    def key(self, name: str, down: bool) -> None:
        """Press a key, or let it go."""
        self.call("Input.dispatchKeyEvent", type="keyDown" if down else "keyUp", key=name, code=name)

    def click(self, selector: str) -> None:
        """Click the middle of an element with the mouse."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.run(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({box})")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, width: int, height: int, *, dark: bool = False) -> bytes:
        """Return a PNG of the page in a window. A narrow one is a phone."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.run("new Promise(done => setTimeout(done, 400))")
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """Open a browser with an empty page.

    Args:
        profile: A new folder.
    """
    from websockets.sync.client import connect

    command = [
        str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--remote-debugging-port=0", f"--user-data-dir={profile}", "--remote-allow-origins=*", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port_file = profile / "DevToolsActivePort"
        end = time.monotonic() + 600  # only ends a hang
        while not (port_file.exists() and len(port_file.read_text().splitlines()) == 2):
            assert time.monotonic() < end, "the browser does not start"
            assert process.poll() is None, "the browser has ended"
            time.sleep(0.05)
        port, path = port_file.read_text().splitlines()
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None) as socket:
            targets = _call(socket, 1, "Target.getTargets")["targetInfos"]
            page = next(target["targetId"] for target in targets if target["type"] == "page")
        with connect(f"ws://127.0.0.1:{port}/devtools/page/{page}", max_size=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
        process.kill()


def _call(socket: Any, number: int, method: str) -> dict[str, Any]:
    socket.send(json.dumps({"id": number, "method": method}))
    while (message := json.loads(socket.recv(timeout=600))).get("id") != number:
        pass
    return message["result"]
