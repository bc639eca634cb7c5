"""Turns log.csv of runs into files that TensorBoard shows: one of events in each run's folder.

    python3 scripts/plots/log_to_tensorboard.py runs/demo runs/cifar100-ripple-001
    tensorboard --logdir runs

The file is events.out.tfevents.<when the run began>.vit and is replaced when the run is converted again, for instance
while it goes on.  Curves: loss/train and loss/validation, accuracy, lr, grad_norm, speed, memory; whatever else the log
has under its own name.  Needs nothing but Python: neither TensorFlow nor TensorBoard.

A file of events is a row of records, each: uint64 length, crc of these 8 bytes, the bytes, crc of them (all little
endian; crc is CRC-32C, rotated and shifted as TFRecord has it).  The bytes are a protocol buffer tensorflow.Event.
"""

import argparse
import csv
import glob
import math
import os
import struct
import sys

TAGS = {"loss": "loss/train", "val_loss": "loss/validation", "top1": "accuracy/top1", "top5": "accuracy/top5",
        "ap": "accuracy/AP", "ap50": "accuracy/AP50", "images_per_s": "speed/images_per_s", "stall": "speed/stall",
        "peak_bytes": "memory/peak_bytes"}
NO_CURVE = ("step", "wall_s")


# == Records ===========================================================================================================

def crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # Castagnoli's polynomial, bits reversed
        table.append(value)
    return table


CRC_TABLE = crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked_crc(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data):
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


# == Protocol buffers ==================================================================================================

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def varint(n):
    data = bytearray()
    while n > 0x7F:
        data.append(n & 0x7F | 0x80)
        n >>= 7
    data.append(n)
    return bytes(data)


def field(number, kind, data):
    return varint(number << 3 | kind) + (varint(len(data)) + data if kind == BYTES else data)


def event(wall_time, content):
    return field(1, FIXED64, struct.pack("<d", wall_time)) + content


def version_event(wall_time):
    return event(wall_time, field(3, BYTES, b"brain.Event:2"))


def as_float(x):
    """Of a float's range: what is larger becomes infinite."""
    return x if abs(x) <= 3.4028234e38 or not math.isfinite(x) else math.copysign(math.inf, x)


def scalars_event(wall_time, step, scalars):
    """scalars: (tag, value)."""
    values = b"".join(field(1, BYTES, field(1, BYTES, tag.encode()) + field(2, FIXED32, struct.pack("<f", as_float(x))))
                      for tag, x in scalars)
    return event(wall_time, field(2, VARINT, varint(step)) + field(5, BYTES, values))


# == A run =============================================================================================================

def number(text):
    """None where a row has nothing."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def read_rows(path):
    """(step, seconds since the run began or None, {column: value}); the last row may be half written."""
    with open(path, newline="") as file:
        lines = file.read().splitlines(keepends=True)
    if len(lines) > 1 and not lines[-1].endswith("\n"):
        lines.pop()
    rows = []
    for row in csv.DictReader(lines):
        step = number(row.get("step"))
        if step is None or step < 0 or step != int(step):
            raise ValueError(f"row {len(rows) + 2} has no step")
        values = {key: number(text) for key, text in row.items() if key and key not in NO_CURVE}
        rows.append((int(step), number(row.get("wall_s")), {key: x for key, x in values.items() if x is not None}))
    if not rows:
        raise ValueError("no rows yet")
    return rows


def convert(folder):
    """Returns the path of the file of events and how many there are."""
    log = os.path.join(folder, "log.csv")
    rows, ended = read_rows(log), os.path.getmtime(log)
    seconds = [wall if wall is not None else 0.0 for _, wall, _ in rows]  # logs of before have no times
    began = ended - seconds[-1]
    records = [record(version_event(began))]
    for (step, _, values), wall in zip(rows, seconds):
        scalars = [(TAGS.get(key, key), x) for key, x in values.items()]
        records.append(record(scalars_event(began + wall, step, scalars)))
    pattern = os.path.join(glob.escape(folder), "events.out.tfevents.*.vit")
    path = os.path.join(folder, f"events.out.tfevents.{int(began)}.vit")
    with open(path + ".tmp", "wb") as file:
        file.write(b"".join(records))
    for old in glob.glob(pattern):
        os.remove(old)
    os.replace(path + ".tmp", path)
    return path, len(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR", help="folder with a log.csv")
    for folder in parser.parse_args().runs:
        try:
            path, rows = convert(folder)
        except (OSError, ValueError, csv.Error) as error:
            place = getattr(error, "filename", None) or os.path.join(folder, "log.csv")
            sys.exit(f"log_to_tensorboard.py: {place}: {getattr(error, 'strerror', None) or error}")
        print(f"{path}: {rows} rows of log.csv")


if __name__ == "__main__":
    main()
