"""Chromium without a window, for tests of pages: it opens them, acts as a reader does and takes screenshots.  Needs
nothing else but Python."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib

WIDTHS = {1280: 900, 390: 844}  # and heights of the windows: a notebook and a phone
WAIT_S = 60
PROGRAM = os.path.basename(sys.argv[0])


# == The browser =======================================================================================================

def find_browser():
    """None where there is none.  Chromium as a snap, Ubuntu's, does not see the files in /tmp."""
    for name in (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        path = name and shutil.which(name)
        if path and "/snap/" not in os.path.realpath(path):
            with open(path, "rb") as file:
                if b"/snap/" not in file.read(4096):
                    return path
    return None


class Browser:
    """Chromium, controlled by its DevTools protocol: JSON messages that end with a zero byte, over two pipes."""

    def __init__(self, path):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self.to = os.pipe()
        self.of, theirs_out = os.pipe()
        # The browser reads descriptor 3 and writes 4.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
        self.process = subprocess.Popen(
            [path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
             "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={self.profile.name}",
             "--remote-debugging-pipe"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(3, 4),
            start_new_session=True, env={**os.environ, "TMPDIR": self.profile.name},
            preexec_fn=lambda: [os.dup2(end, number) for end, number in zip(ends, (3, 4))])
        for end in (theirs_in, theirs_out, *ends):
            os.close(end)
        self.rest, self.number, self.session, self.events = b"", 0, None, []

    def close(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.to)
        os.close(self.of)
        self.profile.cleanup()

    def receive(self, until):
        """The next message; None when it is late."""
        while b"\0" not in self.rest:
            if not select.select([self.of], [], [], max(0, until - time.monotonic()))[0]:
                return None
            data = os.read(self.of, 1 << 20)
            if not data:
                sys.exit(f"{PROGRAM}: the browser ended")
            self.rest += data
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        """What the command answers; events that come before it are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + WAIT_S
        while True:
            answer = self.receive(until)
            if answer is None:
                sys.exit(f"{PROGRAM}: no answer to {method} within {WAIT_S} s")
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"{PROGRAM}: {method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            sys.exit(f"{PROGRAM}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def open(self, url, width, scheme, script=True):
        """A new tab, without its predecessor, in which the page has loaded."""
        self.session = None
        targets = self.call("Target.getTargets")["targetInfos"]
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        for old in targets:
            if old["type"] == "page":
                self.call("Target.closeTarget", targetId=old["targetId"])
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=WIDTHS.get(width, 900), deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.events = []
        self.call("Page.navigate", url=url)
        until = time.monotonic() + WAIT_S
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            event = self.receive(until)
            if event is None:
                sys.exit(f"{PROGRAM}: {url}: did not load within {WAIT_S} s")
            self.events.append(event)

    def screenshot(self, width, height, scale=1.0, x=0.0, y=0.0):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                         clip={"x": x, "y": y, "width": width, "height": height, "scale": scale})["data"]
        return base64.b64decode(data)


# == Pictures ==========================================================================================================

def unfilter(kind, line, above, step):
    """A row of a PNG file, whose bytes are differences from neighbours, in place."""
    for i, difference in enumerate(line):
        left = line[i - step] if i >= step else 0
        up = above[i]
        if kind == 1:
            guess = left
        elif kind == 2:
            guess = up
        elif kind == 3:
            guess = (left + up) // 2
        else:
            corner = above[i - step] if i >= step else 0
            gradient = left + up - corner
            guess = min((left, up, corner), key=lambda value: abs(gradient - value))
        line[i] = (difference + guess) & 255


def decode_png(data):
    """Rows of (red, green, blue) of a PNG file of 8 bits a channel, which is what the browser writes."""
    at, body = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        chunk = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", chunk[:10])
        elif kind == b"IDAT":
            body += chunk
        at += 12 + length
    step = {2: 3, 6: 4}[colour]
    assert depth == 8
    data, above, rows = zlib.decompress(body), bytearray(width * step), []
    for y in range(height):
        start = y * (width * step + 1)
        line = bytearray(data[start + 1:start + 1 + width * step])
        if data[start]:
            unfilter(data[start], line, above, step)
        rows.append([tuple(line[i:i + 3]) for i in range(0, width * step, step)])
        above = line
    return rows


def trouble(events, url):
    """Of the browser's events: what the page asked for and what went wrong in its script."""
    for event in events:
        about = event.get("params", {})
        method = event.get("method")
        if method == "Network.requestWillBeSent":
            address = about["request"]["url"]
            if address.split("#")[0] != url and not address.startswith(("data:", "blob:")):
                yield f"asks for {address[:100]}"
        elif method == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            yield f"script: {details.get('exception', {}).get('description') or details['text']}".split("\n")[0]
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            yield f"console: {' '.join(str(one.get('value', '')) for one in about['args'])}"
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            if about["entry"]["source"] != "network":  # that is reported already
                yield f"console: {about['entry']['text']}"
