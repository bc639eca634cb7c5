"""Packs vitc as a wheel for `pip install ./python`: what pip calls a build backend (PEP 517), of the standard library
alone, so that installing needs no other package and no network.  The version is core/version.h's."""

import base64
import hashlib
import os
import re
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
METADATA = """Metadata-Version: 2.1
Name: vitc
Version: {version}
Summary: The vision transformers of vit.c in PyTorch: attention operators as modules, checkpoints loaded, ONNX written
License: MIT
Requires-Python: >=3.10
Requires-Dist: torch>=1.13.0a0
Provides-Extra: onnx
Requires-Dist: onnx; extra == "onnx"
Requires-Dist: onnxscript; extra == "onnx"
Requires-Dist: onnxruntime; extra == "onnx"
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: vitc\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def version():
    """0.2.0-dev is 0.2.0.dev0 to pip."""
    with open(os.path.join(HERE, "..", "core", "version.h")) as file:
        return re.search(r'VIT_VERSION "(.*)"', file.read())[1].replace("-dev", ".dev0")


def modules():
    for folder, _, names in os.walk(os.path.join(HERE, "vitc")):
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    yield os.path.relpath(path, HERE), file.read()


def pack(folder, files):
    info = f"vitc-{version()}.dist-info"
    with open(os.path.join(HERE, "..", "LICENSE"), "rb") as file:
        files = [*files, (f"{info}/METADATA", METADATA.format(version=version()).encode()),
                 (f"{info}/WHEEL", WHEEL.encode()), (f"{info}/LICENSE", file.read())]
    record = ""
    for name, data in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode()))
    wheel = f"vitc-{version()}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            archive.writestr(name, data)
    return wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return pack(wheel_directory, modules())


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """pip install -e ./python"""
    return pack(wheel_directory, [("vitc.pth", f"{HERE}\n".encode())])
