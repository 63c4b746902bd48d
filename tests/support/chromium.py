"""A headless Chromium, driven by the Chrome DevTools Protocol; no driver has to be installed.

Source: chromedevtools.github.io/devtools-protocol, domains Page, Runtime, Input, Emulation,
Accessibility and Log.
"""

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_START_LIMIT_S: Final = 60.0
_CALL_LIMIT_S: Final = 60.0
_WAIT_LIMIT_S: Final = 30.0
_POLL_S: Final = 0.05
_MOST_BYTES: Final = 256 * 1024 * 1024
_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # it runs as root in a container, and shows nothing but our own page
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class BrowserError(Exception):
    """The browser did not start, or refused a command; the message says which."""


def find_chromium() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((path for name in _NAMES if (path := shutil.which(name)) is not None), None)


class Tab:
    """One tab.

    Attributes:
        troubles: uncaught errors, console errors and refusals of the content security policy.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.troubles: list[str] = []

    async def listen(self) -> None:
        """Read what the browser says, until cancelled."""
        async for message in self._socket:
            response = message.json()
            if "id" in response:
                future = self._waiting.pop(response["id"], None)
                if future is not None and not future.done():
                    future.set_result(response)
            else:
                self._note(response["method"], response["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            thrown = details.get("exception", {}).get("description", "")
            self.troubles.append(f"{details['text']} {thrown}")
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.troubles.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a command.

        Raises:
            BrowserError: the browser refused it.
        """
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(_CALL_LIMIT_S):
            response = await future
        if "error" in response:
            raise BrowserError(f"{method}: {response['error']['message']}")
        result: dict[str, Any] = response["result"]
        return result

    async def go(self, url: str) -> None:
        """Begin to load an address."""
        await self.call("Page.navigate", url=url)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited.

        Raises:
            BrowserError: the expression threw.
        """
        response = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in response:
            thrown = response["exceptionDetails"].get("exception", {}).get("description")
            raise BrowserError(f"{expression}: {thrown or response['exceptionDetails']['text']}")
        return response["result"].get("value")

    async def wait_for(self, expression: str) -> Any:
        """Return the first true value of an expression; an object has no value here.

        Raises:
            BrowserError: there was none in half a minute.
        """
        try:
            async with asyncio.timeout(_WAIT_LIMIT_S):
                while not (value := await self.evaluate(expression)):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            troubles = "; ".join(self.troubles) or "no errors"
            raise BrowserError(f"never true: {expression} ({troubles})") from None
        return value

    async def press(self, key: str) -> None:
        """Press a key, such as ``ArrowRight``, ``Enter`` or ``Tab``."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key, 0)
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        kind = "keyDown" if text else "rawKeyDown"
        await self.call(
            "Input.dispatchKeyEvent", type=kind, **common, **({"text": text} if text else {})
        )
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def emulate(self, **features: str) -> None:
        """Set media features such as ``prefers_color_scheme="dark"``."""
        wanted = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        await self.call("Emulation.setEmulatedMedia", features=wanted)

    async def resize(self, width: int, height: int) -> None:
        """Set the size of the window's content, in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def accessible(self) -> list[tuple[str, str]]:
        """Return role and name of what assistive technology sees, in order."""
        tree = await self.call("Accessibility.getFullAXTree")
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in tree["nodes"]
            if not node.get("ignored") and "role" in node
        ]


@asynccontextmanager
async def open_tab(executable: str, *flags: str) -> AsyncIterator[Tab]:
    """Start a browser with an empty profile and yield its tab; it ends with the block.

    Raises:
        BrowserError: it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="fg-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            executable,
            *_FLAGS,
            *flags,
            f"--user-data-dir={folder}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _debugging_port(Path(folder) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
                url = await _tab_url(http, port)
                async with http.ws_connect(url, max_msg_size=_MOST_BYTES) as socket:
                    tab = Tab(socket)
                    listening = group.create_task(tab.listen(), name="listen")
                    domains = ("Page", "Runtime", "Log", "Accessibility")
                    for domain in domains:
                        await tab.call(f"{domain}.enable")
                    await tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
                    try:
                        yield tab
                    finally:
                        listening.cancel()
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _debugging_port(file: Path, process: asyncio.subprocess.Process) -> int:
    """Return the port that the browser writes into its profile once it listens."""
    try:
        async with asyncio.timeout(_START_LIMIT_S):
            while process.returncode is None:
                port = _written_port(file)
                if port is not None:
                    return port
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise BrowserError(f"it did not listen within {_START_LIMIT_S:g} s") from None
    raise BrowserError(f"it ended with {process.returncode}")


def _written_port(file: Path) -> int | None:
    lines = file.read_text().splitlines() if file.exists() else []
    return int(lines[0]) if len(lines) > 1 else None


async def _tab_url(http: aiohttp.ClientSession, port: int) -> str:
    async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
        tabs: Sequence[dict[str, str]] = await answer.json()
    return next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
