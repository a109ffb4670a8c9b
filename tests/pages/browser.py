"""Chromium without a window, driven over its DevTools protocol on two pipes: no package is needed for that."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

TIMEOUT_S = 120  # a busy machine may take long to start a browser


def find_browser():
    """Debian's Chromium, or one that is called like it."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def _moved_up(fd):
    """The same pipe under a number that does not collide with 3 and 4, which Chromium expects."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD, 10)
    os.close(fd)
    return moved


class Browser:
    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="braid-browser-")
        requests, self.requests = (_moved_up(fd) for fd in os.pipe())
        self.answers, answers = (_moved_up(fd) for fd in os.pipe())
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-extensions", "--disable-background-networking", "--force-device-scale-factor=1",
                   f"--user-data-dir={self.profile}", "--remote-debugging-pipe"]
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{requests} 4>&{answers}', "browser", program, *options, "about:blank"],
            pass_fds=(requests, answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(requests)
        os.close(answers)
        self.pending = b""
        self.number = 0
        self.events = []

    def close(self):
        os.close(self.requests)
        os.close(self.answers)
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _message(self, deadline):
        while b"\0" not in self.pending:
            ready, _, _ = select.select([self.answers], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            data = os.read(self.answers, 1 << 20)
            if not data:
                raise ConnectionError("the browser has ended")
            self.pending += data
        message, self.pending = self.pending.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if session:
            request["sessionId"] = session
        os.write(self.requests, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            message = self._message(deadline)
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self.events.append(message)

    def wait_for(self, event, session):
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            for message in self.events:
                if message.get("method") == event and message.get("sessionId") == session:
                    return
            self.events.append(self._message(deadline))

    def open(self, path, width=1200, height=900, dark=False):
        return Page(self, path, width, height, dark)


class Page:
    """A file that is open in the browser. `complaints` has what it wrote to the console, and what it failed to load."""

    def __init__(self, browser, path, width, height, dark):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        browser.wait_for("Page.loadEventFired", self.session)
        self.settle()

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def resize(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def settle(self):
        """Until what resizing and scripts asked for is drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    @property
    def complaints(self):
        texts = []
        for message in self.browser.events:
            if message.get("sessionId") != self.session:
                continue
            method, parameters = message["method"], message["params"]
            if method == "Runtime.consoleAPICalled":
                texts.append(str([argument.get("value", argument.get("description")) for argument in parameters["args"]]))
            if method == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                texts.append(details.get("exception", {}).get("description", details["text"]))
            if method == "Log.entryAdded":
                texts.append(parameters["entry"]["text"])
        return texts

    @property
    def loaded(self):
        return [message["params"]["request"]["url"] for message in self.browser.events
                if message.get("sessionId") == self.session and message["method"] == "Network.requestWillBeSent"]

    def run(self, expression):
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText.replace(/[\\u00a0\\u2009]/g, ' ')")

    def texts(self, selector):
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})]"
                        ".map(node => node.innerText.replace(/[\\u00a0\\u2009]/g, ' '))")

    def data(self):
        return json.loads(self.run("document.getElementById('data').textContent"))

    def center_of(self, selector):
        return self.run(f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
                        "node.scrollIntoView({block: 'center'}); const box = node.getBoundingClientRect();"
                        "return [box.x + box.width / 2, box.y + box.height / 2]; })()")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def hover(self, selector):
        x, y = self.center_of(selector)
        self.mouse("mouseMoved", x - 1, y)
        self.mouse("mouseMoved", x, y)
        return x, y

    def click(self, selector):
        x, y = self.hover(selector)
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.settle()

    def drag(self, begin, end):
        self.mouse("mouseMoved", *begin)
        self.mouse("mousePressed", *begin, button="left", buttons=1, clickCount=1)
        self.mouse("mouseMoved", *end, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)
        self.settle()

    def press(self, key, **more):
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **more)
        self.settle()

    def set_slider(self, selector, value):
        self.run(f"(() => {{ const input = document.querySelector({json.dumps(selector)}); input.value = {value};"
                 "input.dispatchEvent(new Event('input', {bubbles: true})); })()")
        self.settle()

    def overflow(self):
        """By how many pixels the page is wider than its window."""
        return self.run("document.documentElement.scrollWidth - window.innerWidth")

    def screenshot(self, path, whole=True):
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole,
                            **({"clip": self._whole_page()} if whole else {}))
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))

    def _whole_page(self):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
