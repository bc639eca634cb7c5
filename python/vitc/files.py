"""Files of safetensors: uint64 n, n bytes of JSON {name: {dtype, shape, data_offsets}, "__metadata__": {name: text}}, and
the tensors' bytes, all little-endian.  Whole files are read, so that this package needs PyTorch alone."""

import ctypes
import json
import math
import os
import struct

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def tensor(data, entry):
    """Of an entry of the header; data is what follows the header."""
    dtype, shape, (begin, end) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    count, size = math.prod(shape), torch.empty((), dtype=dtype).element_size()
    if min(shape, default=0) < 0 or not 0 <= begin <= end <= len(data) or end - begin != count * size:
        raise ValueError
    return torch.frombuffer(data[begin:end], dtype=dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def read(path):
    """Returns ({name: tensor}, {name: text}).  A damaged file is a ValueError, a missing one an OSError."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    try:
        start = 8 + struct.unpack("<Q", data[:8])[0]
        if start > len(data):
            raise ValueError
        header = json.loads(data[8:start])
        metadata, rest = header.pop("__metadata__", {}), memoryview(data)[start:]
        return {name: tensor(rest, entry) for name, entry in header.items()}, metadata
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, struct.error) as error:
        raise ValueError("not a safetensors file, or damaged") from error


def write(path, tensors, metadata):
    """Under a temporary name first, so that a file that was there is not lost."""
    header, parts, end = {"__metadata__": metadata}, [], 0
    for name, value in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):  # aligned
        flat = value.detach().cpu().contiguous().flatten()
        parts.append(ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()))
        begin, end = end, end + len(parts[-1])
        header[name] = {"dtype": NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{path}.tmp", "wb") as file:
        file.writelines([struct.pack("<Q", len(text)), text, *parts])
    os.replace(f"{path}.tmp", path)
