"""Safetensors in plain Python and numpy, for machines without the safetensors package.

A file is: uint64 little-endian n, n bytes of JSON {name: {dtype, shape, data_offsets: [begin, end]}, "__metadata__":
{str: str}}, then the tensors back to back, little-endian, row-major.  The writer pads the JSON with spaces to a
multiple of 8 and puts wide types first, so that every tensor is aligned; the same tensors always give the same bytes.
"""

import json
import os
import struct

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
          "BOOL": "?"}


def dtype_name(array):
    for name, dtype in DTYPES.items():
        if array.dtype == np.dtype(dtype):
            return name
    raise TypeError(f"safetensors_io does not write {array.dtype}")


def write(path, tensors, metadata=None):
    """tensors {name: numpy array}, metadata {str: str}."""
    arrays = {name: np.require(array, requirements="C") for name, array in tensors.items()}
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = {key: metadata[key] for key in sorted(metadata)}
    for name in order:
        array = arrays[name]
        header[name] = {"dtype": dtype_name(array), "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    temporary = f"{path}.tmp"
    with open(temporary, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(arrays[name].tobytes())
    os.replace(temporary, path)


def read(path):
    """Returns ({name: numpy array}, metadata)."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 8 or struct.unpack("<Q", data[:8])[0] > len(data) - 8:
        raise ValueError(f"{path}: not a safetensors file (the header is longer than the file)")
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"{path}: {name}: dtype {entry['dtype']} is not read here")
        begin, end = entry["data_offsets"]
        dtype = np.dtype(DTYPES[entry["dtype"]])
        count = int(np.prod(entry["shape"], dtype=np.int64))
        if not 0 <= begin <= end <= len(data) - start or end - begin != count * dtype.itemsize:
            raise ValueError(f"{path}: {name}: data_offsets {begin}..{end} do not fit its shape or the file")
        tensors[name] = np.frombuffer(data, dtype, count, start + begin).reshape(entry["shape"])
    return tensors, metadata
