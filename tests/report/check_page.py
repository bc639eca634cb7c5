"""Checks pages that the programs write (report/): opens them in Chromium as a reader does, and prints a line for every
defect.  Needs nothing else but Python.

    python3 tests/report/check_page.py runs/a/report.html compare.html
    python3 tests/report/check_page.py runs/a/report.html --says "top-1" --says '<script>'     texts that it has to show
    python3 tests/report/check_page.py runs/a/report.html --screenshot page.png --width 390 --scheme dark
    python3 tests/report/check_page.py runs/a/report.html --screenshot matrix.png --of "#confusion ~ figure"

A page has less than 400 kB and is well-formed XML.  At 1280 pixels, light, and at 390, dark, it asks for no address but
its own, its script raises no error, also while the pointer goes over its charts and its buttons and headings are
clicked, it is not wider than the window, neither it nor a chart nor a picture of it is blank, no text overlaps another,
is cut off, is tiny or has too little contrast.  The same holds at 390 pixels, light, where scripts do not run.

Exit status: 0 without a defect, 1 with some, 77 where only size and XML were checked, as there is no Chromium.
"""

import argparse
import collections
import json
import pathlib
import sys
import xml.etree.ElementTree

from browser import Browser, decode_png, find_browser, trouble

MOST_BYTES = 400_000
SCHEMES = ("light", "dark")
WINDOWS = ((1280, "light", True), (390, "dark", True), (390, "light", False))  # and whether scripts run
NO_BROWSER = 77
TOLD = 12        # defects of a kind of page and window that are printed
SHRINK = 0.125   # screenshots that are only counted
PALE = 20        # texts of a page whose pixels are looked at
CONTRAST = 3     # the least, which WCAG asks of large texts
INK = 0.002      # share of pixels of a page that are not of its most common colour
MEASURE = (pathlib.Path(__file__).parent / "measure.js").read_text()


# == Contrast =========================================================================================================

def luminance(colour):
    """As WCAG defines it for its contrasts."""
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in (value / 255 for value in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(rows):
    """Of a text: between the most common colour and the one that differs most from it."""
    colours = collections.Counter(pixel for row in rows for pixel in row)
    ground = luminance(colours.most_common(1)[0][0])
    return max((max(ground, ink) + 0.05) / (min(ground, ink) + 0.05) for ink in map(luminance, colours))


def pale_texts(browser, texts):
    for text in texts[:PALE]:
        found = contrast(decode_png(browser.screenshot(text["width"], text["height"], x=text["x"], y=text["y"])))
        if found < CONTRAST:
            yield f"the text {text['text']} has a contrast of {found:.1f}"


def blank_parts(rows, drawn, scheme):
    colours = collections.Counter(pixel for row in rows for pixel in row)
    ground, count = colours.most_common(1)[0]
    if 1 - count / sum(colours.values()) < INK:
        yield "the page is blank"
    if (luminance(ground) < 0.2) != (scheme == "dark"):
        yield f"the page's ground is rgb{ground}"
    for part in drawn:
        left, top, right, bottom = (int(SHRINK * x) for x in (part["x"], part["y"], part["x"] + part["width"],
                                                              part["y"] + part["height"]))
        if len({pixel for row in rows[top:bottom + 1] for pixel in row[left:right + 1]}) < 2:
            yield f"the {part['name']} is blank"


# == A page ============================================================================================================

def check_file(path):
    data = path.read_bytes()
    if len(data) >= MOST_BYTES:
        yield f"{len(data)} bytes, of {MOST_BYTES} at most"
    try:
        xml.etree.ElementTree.fromstring(data)
    except xml.etree.ElementTree.ParseError as error:
        yield f"not well-formed: {error}"


def use(browser):
    """Goes over every chart with the pointer, and clicks whatever can be clicked but links."""
    count = browser.evaluate("(window.parts = [...document.querySelectorAll('svg, button, th')]).length")
    for i in range(count):
        x, y, width, height, click = browser.evaluate(
            f"(() => {{ const part = parts[{i}]; part.scrollIntoView({{block: 'center'}});"
            "const box = part.getBoundingClientRect();"
            "return [box.left, box.top, box.width, box.height, part.localName !== 'svg']; })()")
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                browser.call("Input.dispatchMouseEvent", type=kind, x=x + width / 2, y=y + height / 2, button="left",
                             clickCount=1)
        else:
            for share in (0.1, 0.5, 0.9):
                browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + share * width, y=y + height / 2)
    browser.evaluate("new Promise(resolve => setTimeout(resolve, 50))")  # what a click has begun


def check_shown(browser, path, says):
    """Each defect once, with the first window that has it."""
    url, seen = path.as_uri(), set()
    for width, scheme, script in WINDOWS:
        browser.open(url, width, scheme, script)
        if says and script:
            shown = browser.evaluate("document.body.textContent")
            found = [f"does not say {text!r}" for text in says if text not in shown]
        else:
            found = []
        choices = browser.evaluate("document.querySelectorAll('input[type=radio]').length")
        for i in reversed(range(max(1, choices))):
            browser.evaluate(f"document.querySelectorAll('input[type=radio]')[{i}]?.click()")
            measured = browser.evaluate(MEASURE)
            found += measured["defects"]
        if measured["texts"]:
            picture = decode_png(browser.screenshot(measured["width"], measured["height"], SHRINK))
            found += blank_parts(picture, measured["drawn"], scheme)
            found += pale_texts(browser, measured["pale"])
        else:
            found.append("shows no text")
        if width > 600:  # a phone has no pointer
            use(browser)
        found += trouble(browser.events, url)
        for defect in found:
            if defect not in seen:
                seen.add(defect)
                yield f"at {width} pixels, {scheme}{'' if script else ', without scripts'}: {defect}"


def check(browser, path, says):
    """Prints the defects and returns how many there are."""
    found = list(check_file(path))
    if browser:
        found += check_shown(browser, path.resolve(), says)
    for defect in found[:TOLD]:
        print(f"{path}: {defect}")
    if len(found) > TOLD:
        print(f"{path}: and {len(found) - TOLD} more")
    return len(found)


def take_screenshot(browser, path, arguments):
    browser.open(path.resolve().as_uri(), arguments.width, arguments.scheme)
    box = browser.evaluate(f"""(() => {{
        const box = document.querySelector({json.dumps(arguments.of)})?.getBoundingClientRect();
        return box && [box.left + scrollX, box.top + scrollY, box.width, box.height];
    }})()""")
    if not box:
        sys.exit(f"check_page.py: {path}: nothing that is {arguments.of}")
    x, y, width, height = box
    pathlib.Path(arguments.screenshot).write_bytes(
        browser.screenshot(width, min(height, arguments.height or height), x=x, y=y))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", metavar="PAGE", type=pathlib.Path)
    parser.add_argument("--says", action="append", default=[], metavar="TEXT", help="a text that pages have to show")
    parser.add_argument("--screenshot", metavar="PNG", help="only write a picture of the page")
    parser.add_argument("--width", type=int, default=1280, metavar="N", help="of the picture (default 1280)")
    parser.add_argument("--height", type=int, metavar="N", help="of the picture at most (default: the whole page)")
    parser.add_argument("--of", default="html", metavar="SELECTOR", help="of what the picture is (CSS)")
    parser.add_argument("--scheme", choices=SCHEMES, default="light", help="of the picture (default light)")
    arguments = parser.parse_args()
    path = find_browser()
    browser = Browser(path) if path else None
    try:
        if arguments.screenshot and browser:
            take_screenshot(browser, arguments.pages[0], arguments)
            return 0
        defects = sum(check(browser, page, arguments.says) for page in arguments.pages)
    except OSError as error:
        sys.exit(f"check_page.py: {error.filename}: {error.strerror}")
    finally:
        if browser:
            browser.close()
    if defects:
        return 1
    if not browser:
        print("chromium is not installed: apt-get install chromium")
        return NO_BROWSER
    return 0


if __name__ == "__main__":
    sys.exit(main())
