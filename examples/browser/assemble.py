"""Puts everything into one page, which opens without a server and asks for nothing: style, scripts, the .wasm file and
checkpoints.

    python3 assemble.py --wasm vit.wasm --glue vit.js --out index.html NAME=RUN_FOLDER...

A RUN_FOLDER has best.safetensors and log.csv, from which the page knows the accuracy."""

import argparse
import base64
import csv
import hashlib
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent


def accuracy(folder):
    """The best one in the log, as text; None where there is no log."""
    try:
        with open(folder / "log.csv", newline="") as file:
            found = [float(row["top1"]) for row in csv.DictReader(file) if row.get("top1")]
    except FileNotFoundError:
        return None
    return f"{max(found):.1f} %" if found else None


def checkpoint(argument):
    name, equals, folder = argument.partition("=")
    if not equals:
        sys.exit(f"assemble.py: {argument}: expected NAME=RUN_FOLDER")
    folder = pathlib.Path(folder)
    try:
        data = (folder / "best.safetensors").read_bytes()
    except OSError as error:
        sys.exit(f"assemble.py: {error.filename}: {error.strerror}: train the model first (examples/browser/train.sh)")
    return {"name": name, "accuracy": accuracy(folder), "bytes": base64.b64encode(data).decode()}


def allowed(text):
    """The name by which a content security policy allows this inline script or style, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wasm", type=pathlib.Path, required=True, help="the library")
    parser.add_argument("--glue", type=pathlib.Path, required=True, help="emcc's script that makes a module from it")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the page")
    parser.add_argument("models", nargs="+", metavar="NAME=RUN_FOLDER", help="the models; the first is shown first")
    arguments = parser.parse_args()
    parts = {
        "style": (HERE / "style.css").read_text(),
        "script": (HERE / "page.js").read_text() + (HERE / "draw.js").read_text().replace('"use strict";\n', ""),
        "worker": arguments.glue.read_text() + (HERE / "worker.js").read_text(),
        "wasm": base64.b64encode(arguments.wasm.read_bytes()).decode(),
        "checkpoints": json.dumps([checkpoint(one) for one in arguments.models]),
    }
    parts["policy"] = (f"default-src 'none'; script-src {allowed(parts['script'])} 'wasm-unsafe-eval' blob:; "
                       f"worker-src blob:; style-src {allowed(parts['style'])}; img-src data: blob:; "
                       "base-uri 'none'; form-action 'none'")
    for name, text in parts.items():
        if "</script" in text.lower() or "<!--" in text:
            sys.exit(f"assemble.py: the {name} ends or hides a script of the page")
    page = (HERE / "index.html").read_text()
    pieces = page.split("@")  # text, name, text, name, ..., text
    page = "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))
    arguments.out.write_text(page)


if __name__ == "__main__":
    main()
