"""The settings of a fixture as flags of train_vit or train_detr, without those that the chosen operator, or stem, does
not have.

    python3 tests/reference/flags.py build/cpu/train_vit tests/fixtures/ripple.safetensors
"""
import re
import shlex
import subprocess
import sys

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import safetensors_io


def that_count(program, settings):
    """{name: text} -> ["--name", "text", ...]: of the settings those that the program has with this attn."""
    choosers = [word for name in ("attn", "stem") if name in settings for word in ("--" + name, settings[name])]
    shown = subprocess.run([*shlex.split(program), *choosers, "--help-markdown"], text=True, check=True,
                           capture_output=True).stdout
    known = set(re.findall(r"^\| `(\w+)`", shown, re.MULTILINE))
    return [word for name, text in settings.items() if name.replace("-", "_") in known
            for word in ("--" + name.replace("_", "-"), str(text))]


if __name__ == "__main__":
    metadata = safetensors_io.read(sys.argv[2])[1]
    if "flags" in metadata:
        words = metadata["flags"].split()
        metadata = {name[2:]: text for name, text in zip(words[::2], words[1::2])}
    print(shlex.join(that_count(sys.argv[1], metadata)))
