"""Converts log.csv of runs to event files for TensorBoard, one in each run's folder.

    python3 scripts/plots/log_to_tensorboard.py runs/demo runs/cifar100-ripple-001
    tensorboard --logdir runs

    python3 scripts/plots/log_to_tensorboard.py --follow runs/demo         keeps up with a running run

The file is events.out.tfevents.<when the run began>.vit and is replaced when the run is converted again.  With --follow
new rows are appended to it until every run is done, by its report.json, or Ctrl-C; it waits for a run that has not
begun, and if a log was truncated, as by --resume, the removed rows are withdrawn.  Curves: loss/train and
loss/validation, accuracy, lr, grad_norm, speed, memory; other columns of the log under their own names.  Needs nothing
but Python: neither TensorFlow nor TensorBoard.

A file of events is a sequence of records, each: uint64 length, crc of these 8 bytes, the bytes, crc of them (all little
endian; crc is CRC-32C, rotated and shifted as in TFRecord).  The bytes are a protocol buffer tensorflow.Event.
"""

import argparse
import csv
import glob
import json
import math
import os
import struct
import sys
import time

TAGS = {"loss": "loss/train", "val_loss": "loss/validation", "top1": "accuracy/top1", "top5": "accuracy/top5",
        "ap": "accuracy/AP", "ap50": "accuracy/AP50", "images_per_s": "speed/images_per_s", "stall": "speed/stall",
        "peak_bytes": "memory/peak_bytes"}
NO_CURVE = ("step", "wall_s")
LOOK_S = 1  # between two reads of a log that is followed


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
    """Limits to a float's range: larger values become infinite."""
    return x if abs(x) <= 3.4028234e38 or not math.isfinite(x) else math.copysign(math.inf, x)


def scalars_event(wall_time, step, scalars):
    """scalars: (tag, value)."""
    values = b"".join(field(1, BYTES, field(1, BYTES, tag.encode()) + field(2, FIXED32, struct.pack("<f", as_float(x))))
                      for tag, x in scalars)
    return event(wall_time, field(2, VARINT, varint(step)) + field(5, BYTES, values))


def restart_event(wall_time, step):
    """Values from this step on are not shown any more."""
    return event(wall_time, field(2, VARINT, varint(step)) + field(7, BYTES, field(1, VARINT, varint(1))))


# == A run =============================================================================================================

class NoRows(ValueError):
    pass


def number(text):
    """None if a row has no value."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def read_rows(path):
    """The log's rows as texts by column; the last row may be half written."""
    with open(path, newline="") as file:
        lines = file.read().splitlines(keepends=True)
    if len(lines) > 1 and not lines[-1].endswith("\n"):
        lines.pop()
    try:
        rows = list(csv.DictReader(lines))
    except csv.Error as error:
        raise ValueError(f"{path}: {error}") from error
    for i, row in enumerate(rows):
        step = number(row.get("step"))
        if step is None or step < 0 or step != int(step):
            raise ValueError(f"{path}: row {i + 2} has no step")
    if not rows:
        raise NoRows(f"{path}: no rows yet")
    return rows


def step_of(row):
    return int(float(row["step"]))


def seconds_of(row):
    return number(row.get("wall_s")) or 0.0  # the column is missing in logs of older versions


def row_record(began, row):
    values = [(TAGS.get(key, key), number(text)) for key, text in row.items() if key and key not in NO_CURVE]
    scalars = [(tag, x) for tag, x in values if x is not None]
    return record(scalars_event(began + seconds_of(row), step_of(row), scalars))


class Events:
    """The file of events of a run, and the rows of the log that are in it."""

    def __init__(self, folder):
        self.folder, self.log = folder, os.path.join(folder, "log.csv")
        self.rows, self.path, self.began, self.seen = [], None, None, None

    def convert(self):
        """Writes the whole file."""
        rows = read_rows(self.log)
        self.began = os.path.getmtime(self.log) - seconds_of(rows[-1])
        path = os.path.join(self.folder, f"events.out.tfevents.{int(self.began)}.vit")
        with open(path + ".tmp", "wb") as file:
            file.write(record(version_event(self.began)) + b"".join(row_record(self.began, row) for row in rows))
        for old in glob.glob(os.path.join(glob.escape(self.folder), "events.out.tfevents.*.vit")):
            os.remove(old)
        os.replace(path + ".tmp", path)
        self.rows, self.path = rows, path

    def append(self):
        """Appends new rows, after a record that rows of the file which are no longer in the log are invalid."""
        rows = read_rows(self.log)
        same = 0
        while same < min(len(self.rows), len(rows)) and self.rows[same] == rows[same]:
            same += 1
        records = [row_record(self.began, row) for row in rows[same:]]
        if same < len(self.rows):
            records.insert(0, record(restart_event(time.time(), step_of(self.rows[same]))))
        with open(self.path, "ab") as file:
            file.write(b"".join(records))
        self.rows = rows

    def keep_up(self):
        """Waits for a log that is missing or has no rows."""
        try:
            state = os.stat(self.log)
            seen = state.st_ino, state.st_size, state.st_mtime_ns
            if seen != self.seen:
                self.append() if self.path else self.convert()
            self.seen = seen
        except (FileNotFoundError, NoRows):
            pass


def is_done(folder):
    try:
        with open(os.path.join(folder, "report.json"), encoding="utf-8") as file:
            return json.load(file)["values"]["state"] == "done"
    except (OSError, ValueError, LookupError, TypeError):
        return False


def follow(runs):
    left = runs
    while left:
        done = [run for run in left if is_done(run.folder)]  # before reading its log, which then has all rows
        for run in left:
            run.keep_up()
        left = [run for run in left if run not in done]
        if left:
            time.sleep(LOOK_S)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR", help="folder with a log.csv")
    parser.add_argument("--follow", action="store_true", help="keep up with the runs while they go on")
    arguments = parser.parse_args()
    runs = [Events(folder) for folder in arguments.runs]
    try:
        if arguments.follow:
            follow(runs)
        else:
            for run in runs:
                run.convert()
    except KeyboardInterrupt:
        pass
    except (OSError, ValueError) as error:
        what = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
        sys.exit(f"log_to_tensorboard.py: {what}")
    for run in runs:
        if run.path:
            print(f"{run.path}: {len(run.rows)} rows of log.csv")


if __name__ == "__main__":
    main()
