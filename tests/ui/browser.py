"""A headless Chromium, driven by its DevTools protocol through two pipes: nothing to install but
Debian's chromium.

    with Browser(directory) as browser:
        page = browser.open(url)
        page.click("#go")
        page.wait("document.title")
"""
import base64
import json
import os
import select
import shlex
import shutil
import subprocess
import time

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--no-first-run", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--hide-scrollbars", "--force-color-profile=srgb",
         "--remote-debugging-pipe")
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), "ArrowLeft": (37, ""),
        "ArrowRight": (39, ""), "ArrowDown": (40, ""), "End": (35, ""), "Home": (36, ""),
        " ": (32, " "), "k": (75, "k"), "O": (79, "O")}
CTRL, SHIFT = 2, 8
# Tells of what the policy forbids, before the page's own script runs.
WATCH = """window.violations = [];
document.addEventListener('securitypolicyviolation',
    (event) => violations.push(event.violatedDirective + ' ' + event.blockedURI));"""


class Browser:
    def __init__(self, directory):
        to_read, self.to = os.pipe()
        self.out, to_write = os.pipe()
        command = shlex.join([CHROMIUM, *FLAGS, f"--user-data-dir={directory}"])
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {command} 3<&{to_read} 4>&{to_write}"],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.n_sent, self.rest, self.pages = 0, b"", {}
        self.ask("Browser.getVersion", seconds=300)  # a machine that does much else starts it slowly

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        os.close(self.to)
        os.close(self.out)

    def _receive(self, deadline):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.out], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self.out, 1 << 16)
            assert data, "the browser has ended"
            self.rest += data
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, session=None, seconds=60, **parameters):
        self.n_sent += 1
        message = {"id": self.n_sent, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        deadline = time.monotonic() + seconds
        while (answer := self._receive(deadline)).get("id") != message["id"]:
            if answer.get("sessionId") in self.pages:
                self.pages[answer["sessionId"]].take(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def open(self, url, width=1280, height=900, scheme="light", is_phone=False):
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        page.show(width, height, is_phone)
        page.prefer(scheme)
        for domain in ("Runtime", "Log", "Network", "Page"):
            page.ask(f"{domain}.enable")
        page.ask("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        page.ask("Page.navigate", url=url)
        page.wait("document.readyState === 'complete'")
        return page


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.requests, self.faults = [], []  # URLs; what the console and the log complain of

    def ask(self, method, **parameters):
        return self.browser.ask(method, self.session, **parameters)

    def take(self, event):
        told = event["params"]
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.faults.append(str(told["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.faults.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif event["method"] == "Runtime.consoleAPICalled":
            self.faults.append(str(told["args"]))

    def show(self, width, height, is_phone=False):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=is_phone)

    def prefer(self, scheme):
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": scheme}])

    def evaluate(self, script):
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True,
                          awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def wait(self, condition, seconds=60):
        """Waits for a script's value that is true, and returns it."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(condition)):
            assert time.monotonic() < deadline, f"it never came: {condition}"
            time.sleep(0.05)
        return value

    def point(self, selector):
        """Where the middle of the element is, once it is in sight."""
        name = json.dumps(selector)
        return self.evaluate(f"""(() => {{ const e = document.querySelector({name});
            e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();
            return [b.x + b.width / 2, b.y + b.height / 2]; }})()""")

    def _mouse(self, kind, x, y, **rest):
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **rest)

    def hover(self, selector):
        self._mouse("mouseMoved", *self.point(selector))

    def click(self, selector):
        x, y = self.point(selector)
        self._mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self._mouse(kind, x, y, button="left", clickCount=1)

    def press(self, key, modifiers=0):
        code, text = KEYS[key]
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, modifiers=modifiers,
                     windowsVirtualKeyCode=code,
                     text=text if kind == "keyDown" and not modifiers else "")

    def type(self, text):
        self.ask("Input.insertText", text=text)

    def choose(self, selector, value):
        """Chooses an option as in an open list."""
        self.evaluate(f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.value = {json.dumps(value)};
            e.dispatchEvent(new Event('change', {{bubbles: true}})); }})()""")

    def focused(self):
        return self.evaluate("document.activeElement.id || document.activeElement.tagName")

    def screenshot(self, path, selector="html"):
        box = self.evaluate(f"""(() => {{
            const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();
            return {{x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height,
                scale: 1}}; }})()""")
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=box)["data"]
        path.write_bytes(base64.b64decode(data))

    def check_clean(self, url):
        """Nothing was asked of others, forbidden by the policy, or complained of."""
        assert self.evaluate("violations") == []
        assert self.faults == []
        outside = [each for each in self.requests if not each.startswith((url, "data:"))]
        assert outside == [] and self.requests
