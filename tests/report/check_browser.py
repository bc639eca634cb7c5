"""Uses the page that `make browser` has built as a reader does, in Chromium, and compares it with train_vit.

    python3 tests/report/check_browser.py --vit build/cpu/train_vit --models build/browser/models \\
        build/browser/index.html

Prints a line for each property, `0` or `1`, its name, `|` and the evidence; 1 means that it does not hold.  Exit status
77 where there is no Chromium."""

import argparse
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

from browser import Browser, decode_png, find_browser, trouble

NO_BROWSER = 77
BOUND = 1e-4     # of logits, in units of their root mean square, and of weights, of the largest one
MEASURE = (pathlib.Path(__file__).parent / "measure.js").read_text()
FIXTURE = pathlib.Path(__file__).parent.parent / "fixtures" / "castling.safetensors"  # weights without settings
NAMES = ("ripple", "softmax", "lisa")
SEEN = """(async () => {
    await started;
    while (state.busy) await state.busy;
    const seen = state.models[state.model].seen;
    return {logits: [...seen.logits], weights: seen.weights && [...seen.weights], pixels: [...state.pixels],
            facts: state.models[state.model].facts, token: state.token, trouble: $('trouble').textContent,
            shown: [...$('classes').rows].map(row => [row.cells[0].textContent, row.cells[2].textContent]),
            best: $('best').textContent, ms: state.models[state.model].times};
})()"""


def report(ok, name, evidence=""):
    print(f"{0 if ok else 1} {name} | {evidence or '-'}", flush=True)
    return ok


# == The program =======================================================================================================

def write_png(path, width, height, pixels):
    rows = b"".join(b"\0" + pixels[3 * y * width:3 * (y + 1) * width] for y in range(height))
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, data in ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
                           (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
            file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))


def read_tensor(path, name):
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:start])[name]
    begin, end = entry["data_offsets"]
    return struct.unpack(f"<{(end - begin) // 4}f", data[start + begin:start + end]), entry["shape"]


def native(vit, checkpoint, seen, folder):
    """{class: probability} of the most probable ones, and the attention matrix [blocks,heads,N,N] with its shape."""
    picture, answer, attention = folder / "x.png", folder / "x.json", folder / "x.safetensors"
    write_png(picture, seen["facts"]["width"], seen["facts"]["height"], bytes(seen["pixels"]))
    subprocess.run([vit, "--init", checkpoint, "--predict", picture, "--json", answer, "--attention", attention],
                   check=True, stdout=subprocess.DEVNULL)
    found = json.loads(answer.read_text())[0]["predictions"]
    return {one["id"]: one["probability"] for one in found}, *read_tensor(attention, "matrix")


# == Comparisons =======================================================================================================

def compare_logits(seen, probabilities):
    """The largest difference of log-probabilities, which are logits but for a constant, by the logits' RMS."""
    logits = seen["logits"]
    most = max(logits)
    total = most + math.log(sum(math.exp(x - most) for x in logits))
    rms = math.sqrt(sum(x * x for x in logits) / len(logits))
    return max(abs(logits[i] - total - math.log(p)) for i, p in probabilities.items()) / rms


def compare_weights(seen, matrix, shape):
    """Every head's row for the chosen token; the largest difference by the largest weight."""
    blocks, heads, count, _ = shape
    rows = [matrix[(head * count + seen["token"]) * count:][:count] for head in range(blocks * heads)]
    wanted = [x for row in rows for x in row]
    found = seen["weights"]
    if not found or len(found) != len(wanted):
        return math.inf
    return max(abs(a - b) for a, b in zip(found, wanted)) / max(map(abs, wanted))


# == A reader ==========================================================================================================

def box_of(browser, selector):
    return browser.evaluate(f"""(() => {{
        const element = document.querySelector({json.dumps(selector)});
        element.scrollIntoView({{block: 'center'}});
        const box = element.getBoundingClientRect();
        return [box.left, box.top, box.width, box.height];
    }})()""")


def mouse(browser, kind, x, y):
    browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="none" if kind == "mouseMoved" else "left",
                 buttons=1 if kind != "mouseReleased" else 0, clickCount=1)


def click(browser, selector, across=0.5, down=0.5):
    left, top, width, height = box_of(browser, selector)
    for kind in ("mousePressed", "mouseReleased"):
        mouse(browser, kind, left + across * width, top + down * height)


def draw_cross(browser):
    left, top, width, height = box_of(browser, "#drawing")
    for line in (((0.25, 0.5), (0.75, 0.5)), ((0.5, 0.25), (0.5, 0.75))):
        (x0, y0), (x1, y1) = line
        mouse(browser, "mousePressed", left + x0 * width, top + y0 * height)
        for i in range(1, 9):
            x, y = x0 + (x1 - x0) * i / 8, y0 + (y1 - y0) * i / 8
            mouse(browser, "mouseMoved", left + x * width, top + y * height)
        mouse(browser, "mouseReleased", left + x1 * width, top + y1 * height)


def touch_line(browser):
    left, top, width, height = box_of(browser, "#drawing")
    for kind, at in (("touchStart", 0.2), ("touchMove", 0.4), ("touchMove", 0.8), ("touchEnd", None)):
        points = [] if at is None else [{"x": left + at * width, "y": top + at * height}]
        browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)


def key(browser, name):
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)


# == Checks ============================================================================================================

def check_model(browser, arguments, name, folder):
    seen = browser.evaluate(SEEN)
    checkpoint = arguments.models / name / "best.safetensors"
    probabilities, matrix, shape = native(arguments.vit, checkpoint, seen, folder)
    off = compare_logits(seen, probabilities)
    report(off <= BOUND, f"{name}: the program's logits", f"off by {off:.1e} of their RMS, {BOUND:.0e} allowed")
    off = compare_weights(seen, matrix, shape)
    report(off <= BOUND, f"{name}: the program's attention of token {seen['token']}",
           f"off by {off:.1e} of the largest weight, {BOUND:.0e} allowed")
    best = max(range(len(seen["logits"])), key=lambda i: seen["logits"][i])
    shown = seen["shown"][best][0], f"{100 * probabilities[best]:.1f} %"
    report(seen["best"] == "".join(shown) and not seen["trouble"],
           f"{name}: the page shows the class and its probability", f"{seen['best']!r} for {shown} {seen['trouble']}")
    return seen


def check_use(browser, arguments, folder):
    before = browser.evaluate(SEEN)
    click(browser, "#clear")
    empty = browser.evaluate(SEEN)
    draw_cross(browser)
    after = browser.evaluate(SEEN)
    changed = sum(a != b for a, b in zip(empty["pixels"], after["pixels"]))
    report(len(set(empty["pixels"])) == 3 and changed > 100, "the brush draws, and Clear empties the drawing",
           f"{changed} values changed")
    click(browser, "#tokens", 0.3, 0.7)
    rows, columns = after["facts"]["rows"], after["facts"]["columns"]
    wanted = int(0.7 * rows) * columns + int(0.3 * columns)
    clicked = browser.evaluate(SEEN)
    report(clicked["token"] == wanted and clicked["token"] != before["token"], "a click chooses a token",
           f"{clicked['token']}, expected {wanted}")
    for i, name in enumerate(NAMES):
        click(browser, f"#models label:nth-of-type({i + 1})")
        seen = check_model(browser, arguments, name, folder)
        report(seen["pixels"] == after["pixels"] and seen["token"] == wanted and seen["facts"]["operator"] == name,
               f"{name}: the drawing and the token stay when the model changes", seen["facts"]["operator"])
    key(browser, "ArrowRight")
    browser.evaluate("$('tokens').focus()")
    key(browser, "ArrowRight")
    report(browser.evaluate(SEEN)["token"] == wanted + 1, "arrow keys move the token")
    click(browser, "#undo")
    click(browser, "#undo")
    report(browser.evaluate(SEEN)["pixels"] == empty["pixels"], "Undo takes strokes back")


def check_files(browser, folder):
    """A picture and files that are none, dropped as bytes."""
    def drop(name, data):
        text = json.dumps(list(data))
        browser.evaluate(f"takeFile(new File([Uint8Array.from({text})], {json.dumps(name)}))")
        return browser.evaluate(SEEN)
    write_png(folder / "red.png", 64, 48, bytes((200, 30, 40)) * (64 * 48))
    seen = drop("red.png", (folder / "red.png").read_bytes())
    report(seen["pixels"][:3] == [200, 30, 40] and len(set(seen["pixels"])) == 3, "a picture becomes the drawing",
           str(seen["pixels"][:3]))
    checkpoint = (folder / "checkpoint").read_bytes()
    for name, data, words in (("notes.png", b"no picture", "cannot read this as a picture"),
                              ("empty.safetensors", b"", "too short"), ("x.safetensors", b"\1" * 64, "not safetensors"),
                              ("other.safetensors", FIXTURE.read_bytes(), "no settings in it"),
                              ("cut.safetensors", checkpoint[:-4], "cut.safetensors: ")):
        seen = drop(name, data)
        report(words in seen["trouble"], f"{name} is refused", repr(seen["trouble"]))
    seen = drop("mine.safetensors", checkpoint)
    report(not seen["trouble"] and browser.evaluate("state.models.length") == 4, "a checkpoint becomes a fourth model",
           seen["trouble"])


def check_look(browser, url, width, scheme, folder):
    browser.open(url, width, scheme)
    browser.evaluate(SEEN)
    browser.evaluate("new Promise(resolve => setTimeout(resolve, 300))")
    if width < 600:
        browser.call("Emulation.setTouchEmulationEnabled", enabled=True)
        before = browser.evaluate(SEEN)["pixels"]
        touch_line(browser)
        after = browser.evaluate(SEEN)["pixels"]
        report(before != after, f"at {width} pixels, {scheme}: a finger draws")
    measured = browser.evaluate(MEASURE)
    picture = browser.screenshot(measured["width"], measured["height"])
    (folder / f"page-{width}-{scheme}.png").write_bytes(picture)
    rows = decode_png(browser.screenshot(measured["width"], measured["height"], 0.125))
    ground = rows[1][1]
    dark = sum(ground) < 300
    unlike = [] if dark == (scheme == "dark") else [f"the ground is rgb{ground}"]
    defects = measured["defects"] + unlike + list(trouble(browser.events, url))
    report(not defects, f"at {width} pixels, {scheme}: nothing overlaps, is cut off or too pale, no request, no error",
           "; ".join(defects[:4]))


def check(browser, arguments, folder):
    url = arguments.page.resolve().as_uri()
    (folder / "checkpoint").write_bytes((arguments.models / "lisa" / "best.safetensors").read_bytes())
    browser.open(url, 1280, "light")
    check_use(browser, arguments, folder)
    check_files(browser, folder)
    found = list(trouble(browser.events, url))
    report(not found, "in all of this no request and no error", "; ".join(found[:3]))
    blocked = browser.evaluate("""new Promise(resolve => {
        document.addEventListener('securitypolicyviolation', event => resolve(event.effectiveDirective));
        fetch('https://example.org/').catch(() => setTimeout(() => resolve('no violation'), 500));
    })""")
    report(blocked == "connect-src", "the policy refuses a request", blocked)
    for width in (1280, 390):
        for scheme in ("light", "dark"):
            check_look(browser, url, width, scheme, arguments.pictures or folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("--vit", type=pathlib.Path, required=True, help="the program train_vit")
    parser.add_argument("--models", type=pathlib.Path, required=True, help="the folder of the models' runs")
    parser.add_argument("--pictures", type=pathlib.Path, help="keep screenshots in this folder")
    arguments = parser.parse_args()
    arguments.vit = arguments.vit.resolve()
    path = find_browser()
    if not path:
        return NO_BROWSER
    browser = Browser(path)
    try:
        with tempfile.TemporaryDirectory() as folder:
            check(browser, arguments, pathlib.Path(folder))
    finally:
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
