#!/usr/bin/env python3
"""Prepares data sets for the programs from the archives that their owners publish, and checks all counts.

    python3 scripts/prepare_data.py imagenet DOWNLOADS     ILSVRC2012_img_train.tar (may be missing),
                                                           ILSVRC2012_img_val.tar, ILSVRC2012_devkit_t12.tar.gz
    python3 scripts/prepare_data.py coco DOWNLOADS         train2017.zip, val2017.zip, annotations_trainval2017.zip
    python3 scripts/prepare_data.py kinetics400 DOWNLOADS   train.csv, val.csv, and archives of clips, *.tar or *.tar.gz, in
                                                           any folders: the lists keep only existing clips
    python3 scripts/prepare_data.py ssv2 DOWNLOADS         20bn-something-something-v2-00 and so on, as they are or each
                                                           in a zip file, and train.json, validation.json, labels.json
    python3 scripts/prepare_data.py enwik8 DOWNLOADS       enwik8.zip
    python3 scripts/prepare_data.py pets DOWNLOADS         images.tar.gz, annotations.tar.gz (Oxford-IIIT Pets)
    python3 scripts/prepare_data.py flowers DOWNLOADS      102flowers.tgz, imagelabels.mat, setid.mat (Oxford Flowers-102)

DOWNLOADS is the folder with these files, which are not changed.  The data set is made in DATA_DIR/NAME.part and renamed
to DATA_DIR/NAME (--data-dir, default datasets) when all counts are right.  --expect train=100,val=10 replaces the
published counts, for an excerpt.  Needs only Python.
"""

import argparse
import csv
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import struct
import sys
import tarfile
import zipfile
import zlib

CLIP = re.compile(r"([\w-]{11}_\d{6}_\d{6})\.mp4$")


def fail(text):
    sys.exit(f"prepare_data.py: {text}")


class Work:
    """The folder of downloads, the new folder, the expected counts, and the file being read."""

    def __init__(self, downloads, made, expect):
        self.downloads, self.made, self.expect, self.reading = downloads, made, expect, downloads

    def find(self, *names, needed=True):
        """The first of these files among the downloads."""
        for name in names:
            if os.path.isfile(os.path.join(self.downloads, name)):
                self.reading = os.path.join(self.downloads, name)
                return self.reading
        if needed:
            fail(f"{self.downloads}: has no {' or '.join(names)}: download it there")
        return None

    def write(self, source, *place):
        """Copies an open file to this path in the new folder."""
        path = os.path.join(self.made, *place)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with source, open(path, "xb") as file:
            shutil.copyfileobj(source, file, 1 << 20)

    def check(self, what, count, published):
        wanted = self.expect.pop(what, published)
        if count != wanted:
            fail(f"{self.reading}: {count} {what}, expected {wanted}: is a file damaged or missing?")
        print(f"{what}: {count}", flush=True)


def tar_members(archive, name):
    """(path in the archive, open file) of the regular files in a tar archive; `name` if it is not a file."""
    with tarfile.open(name, "r|*", archive) as tar:
        for member in tar:
            if member.isfile():
                yield member.name, tar.extractfile(member)


def zip_members(path):
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not name.endswith("/"):
                yield name, archive.open(name)


# == MATLAB's files, in which ImageNet's development kit and Oxford Flowers have their lists ===========================

NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q", 16: "B"}
CELL, STRUCT, TEXT = 1, 2, 4


def mat_elements(data):
    """Yields (type, bytes) for each element of a MATLAB 5 file."""
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        begin = at + 8
        end = begin + size + (-size % 8 if kind != 15 else 0)
        if kind >> 16:  # a small one has both in four bytes, and its data in the next four
            kind, size, begin, end = kind & 0xffff, kind >> 16, at + 4, at + 8
        if begin + size > len(data):
            raise ValueError("cut short")
        body, at = data[begin:begin + size], end
        if kind == 15:
            yield from mat_elements(zlib.decompress(body))
        else:
            yield kind, body


def mat_matrix(body):
    """(name, value): a list of numbers, a text, or a list of dictionaries for a struct array."""
    if not body:
        return "", []
    parts = list(mat_elements(body))
    kind, name, rest = parts[0][1][0], parts[2][1].decode(), parts[3:]
    if kind == STRUCT:
        width, names = struct.unpack("<i", rest[0][1])[0], rest[1][1]
        fields = [names[i:i + width].rstrip(b"\0").decode() for i in range(0, len(names), width)]
        values = [mat_matrix(part)[1] for _, part in rest[2:]]
        return name, [dict(zip(fields, values[i:i + len(fields)])) for i in range(0, len(values), len(fields))]
    if kind == CELL:
        return name, [mat_matrix(part)[1] for _, part in rest]
    code = NUMBERS[rest[0][0]]
    values = list(struct.unpack(f"<{len(rest[0][1]) // struct.calcsize(code)}{code}", rest[0][1]))
    return name, "".join(map(chr, values)) if kind == TEXT else values


def read_mat(data):
    """{name: value}"""
    if data[126:128] != b"IM":
        raise ValueError("not a file of MATLAB 5")
    return dict(mat_matrix(body) for kind, body in mat_elements(data[128:]) if kind == 14)


# == Data sets =======================================================================================================


def imagenet(work):
    kit = {os.path.basename(name): file.read()
           for name, file in tar_members(None, work.find("ILSVRC2012_devkit_t12.tar.gz"))
           if os.path.basename(name) in ("meta.mat", "ILSVRC2012_validation_ground_truth.txt")}
    if len(kit) < 2:
        fail(f"{work.reading}: has no data/meta.mat or no data/ILSVRC2012_validation_ground_truth.txt")
    synsets = read_mat(kit["meta.mat"])["synsets"]
    truth = [int(line) for line in kit["ILSVRC2012_validation_ground_truth.txt"].split()]
    classes = {int(s["ILSVRC2012_ID"][0]): s["WNID"] for s in synsets if not s["num_children"][0]}
    if not set(truth) <= set(classes):
        fail(f"{work.reading}: its ground truth has classes that its meta.mat lacks")
    work.check("classes", len(classes), 1000)
    count = 0
    for name, file in tar_members(None, work.find("ILSVRC2012_img_val.tar")):
        number = re.search(r"(ILSVRC2012_val_(\d{8})\.JPEG)$", name)
        if not number or not 1 <= int(number[2]) <= len(truth):
            fail(f"{work.reading}: {name}: expected ILSVRC2012_val_00000001.JPEG to {len(truth)}")
        work.write(file, "val", classes[truth[int(number[2]) - 1]], number[1])
        count += 1
    if count != len(truth):
        fail(f"{work.reading}: {count} images, but the ground truth has {len(truth)}")
    work.check("val", count, 50000)
    count = 0
    if not work.find("ILSVRC2012_img_train.tar", needed=False):
        print(f"{work.downloads}: no ILSVRC2012_img_train.tar, so val only", flush=True)
        return
    for name, archive in tar_members(None, work.reading):
        wnid = os.path.basename(name)[:-4]
        if wnid not in classes.values():
            fail(f"{work.reading}: {name}: not a class of the development kit")
        for image, file in tar_members(archive, None):
            work.write(file, "train", wnid, os.path.basename(image))
            count += 1
    if len(os.listdir(os.path.join(work.made, "train"))) != len(classes):
        fail(f"{work.reading}: not all of the {len(classes)} classes are in it")
    work.check("train", count, 1281167)


def coco(work):
    listed = {}
    for name, file in zip_members(work.find("annotations_trainval2017.zip")):
        split = re.search(r"(instances_(train|val)2017\.json)$", name)
        if split:
            work.write(file, "annotations", split[1])
            with open(os.path.join(work.made, "annotations", split[1]), encoding="utf-8") as annotations:
                listed[split[2]] = {image["file_name"] for image in json.load(annotations)["images"]}
    for split, published in (("train", 118287), ("val", 5000)):
        there = set()
        if split not in listed:
            fail(f"{work.reading}: has no instances_{split}2017.json")
        for name, file in zip_members(work.find(f"{split}2017.zip")):
            there.add(os.path.basename(name))
            work.write(file, f"{split}2017", os.path.basename(name))
        if listed[split] - there:
            fail(f"{work.reading}: {min(listed[split] - there)} is not in it, but in instances_{split}2017.json")
        work.check(split, len(there), published)


def kinetics400(work):
    """The clips of each split are in a folder, and the lists name the existing ones, because many no longer exist."""
    wanted, rows = {}, {}
    for split in ("train", "val"):
        with open(work.find(f"{split}.csv"), newline="", encoding="utf-8") as file:
            head, *rows[split] = csv.reader(file)
        if head[:4] != ["label", "youtube_id", "time_start", "time_end"]:
            fail(f"{work.reading}: begins with {','.join(head)[:60]}, expected label,youtube_id,time_start,time_end")
        rows[split].insert(0, head)
        for row in rows[split][1:]:
            wanted[f"{row[1]}_{int(row[2]):06d}_{int(row[3]):06d}"] = split
    there = set()
    for folder, _, names in sorted(os.walk(work.downloads)):
        for archive in sorted(name for name in names if name.endswith((".tar", ".tar.gz", ".tgz"))):
            work.reading = os.path.join(folder, archive)
            for name, file in tar_members(None, work.reading):
                clip = CLIP.search(name)
                if clip and clip[1] in wanted and clip[1] not in there:
                    there.add(clip[1])
                    work.write(file, wanted[clip[1]], clip[1] + ".mp4")
    for split in ("train", "val"):
        head, *all_rows = rows[split]
        kept = [row for row in all_rows if f"{row[1]}_{int(row[2]):06d}_{int(row[3]):06d}" in there]
        if not kept:
            fail(f"{work.downloads}: none of the {len(all_rows)} clips of {split}.csv is in the archives there")
        with open(os.path.join(work.made, f"{split}.csv"), "w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([head, *kept])
        print(f"{split}: {len(kept)} of {len(all_rows)} clips are there", flush=True)
        if split in work.expect:
            work.check(split, len(kept), None)


class Joined(io.RawIOBase):
    """Files one after the other, as one."""

    def __init__(self, opened):
        self.opened = list(opened)

    def readable(self):
        return True

    def readinto(self, buffer):
        while self.opened:
            got = self.opened[0].read(len(buffer))
            if got:
                buffer[:len(got)] = got
                return len(got)
            self.opened.pop(0).close()
        return 0


def ssv2(work):
    names, parts, lists = sorted(os.listdir(work.downloads)), [], {}
    for name in names:
        path = os.path.join(work.downloads, name)
        opened = zip_members(path) if name.endswith(".zip") else [(name, None)]
        for inside, file in opened:
            work.reading, short = path, os.path.basename(inside)
            if re.fullmatch(r"20bn-something-something-v2-\d\d", short):
                parts.append((short, file or open(path, "rb")))
            short = short.replace("something-something-v2-", "")
            if short in ("train.json", "validation.json", "labels.json"):
                work.write(file or open(path, "rb"), short)
    for short in ("train.json", "validation.json", "labels.json"):
        if not os.path.exists(os.path.join(work.made, short)):
            fail(f"{work.downloads}: has no {short}, in a zip file or as it is")
        with open(os.path.join(work.made, short), encoding="utf-8") as file:
            lists[short] = json.load(file)
    if not parts:
        fail(f"{work.downloads}: has no 20bn-something-something-v2-00, in a zip file or as it is")
    numbers = [int(short[-2:]) for short, _ in sorted(parts, key=lambda part: part[0])]
    if numbers != list(range(len(numbers))):
        fail(f"{work.downloads}: the parts 20bn-something-something-v2-* are not complete: {numbers}")
    there = set()
    for name, file in tar_members(Joined(file for _, file in sorted(parts, key=lambda part: part[0])), None):
        there.add(os.path.basename(name))
        work.write(file, "20bn-something-something-v2", os.path.basename(name))
    for short in ("train.json", "validation.json"):
        lost = [video["id"] for video in lists[short] if f"{video['id']}.webm" not in there]
        if lost:
            fail(f"{work.downloads}: {len(lost)} videos of {short} are not in the parts there, the first is {lost[0]}")
    work.check("labels", len(lists["labels.json"]), 174)
    work.check("train", len(lists["train.json"]), 168913)
    work.check("val", len(lists["validation.json"]), 24777)


def enwik8(work):
    """One file, which train_ar divides into 90, 5 and 5 % (its setting shares)."""
    sums, size = hashlib.md5(), 0
    path = work.find("enwik8.zip", "enwik8")
    opened = zip_members(path) if path.endswith(".zip") else [("enwik8", open(path, "rb"))]
    for name, file in opened:
        if os.path.basename(name) == "enwik8":
            work.write(file, "enwik8")
            with open(os.path.join(work.made, "enwik8"), "rb") as text:
                for piece in iter(lambda: text.read(1 << 20), b""):
                    sums.update(piece)
                    size += len(piece)
    excerpt = "bytes" in work.expect
    work.check("bytes", size, 100000000)
    if not excerpt and sums.hexdigest() != "a1fa5ffddb56f4953e226637dabbb36a":
        fail(f"{work.reading}: MD5 sum {sums.hexdigest()}, expected a1fa5ffddb56f4953e226637dabbb36a")


def pets(work):
    splits = {}
    for name, file in tar_members(None, work.find("annotations.tar.gz")):
        if os.path.basename(name) in ("trainval.txt", "test.txt"):
            split = "train" if os.path.basename(name) == "trainval.txt" else "val"
            splits.update({line.split()[0]: split for line in file.read().decode().splitlines() if line.strip()})
    counts, classes = {"train": 0, "val": 0}, set()
    for name, file in tar_members(None, work.find("images.tar.gz")):
        image = os.path.basename(name)
        split, breed = splits.get(image[:-4]), image.rpartition("_")[0]
        if split and image.endswith(".jpg"):
            work.write(file, split, breed, image)
            counts[split] += 1
            classes.add(breed)
    work.check("classes", len(classes), 37)
    work.check("train", counts["train"], 3680)
    work.check("val", counts["val"], 3669)


def flowers(work):
    lists = {}
    for name in ("imagelabels.mat", "setid.mat"):
        with open(work.find(name), "rb") as file:
            lists.update(read_mat(file.read()))
    split_of = {int(i): split for split, key in (("train", "trnid"), ("val", "tstid")) for i in lists[key]}
    counts, classes = {"train": 0, "val": 0}, set()
    for name, file in tar_members(None, work.find("102flowers.tgz")):
        number = re.search(r"(image_(\d{5})\.jpg)$", name)
        split = number and split_of.get(int(number[2]))
        if split:
            flower = f"{int(lists['labels'][int(number[2]) - 1]):03d}"
            work.write(file, split, flower, number[1])
            counts[split] += 1
            classes.add(flower)
    work.check("classes", len(classes), 102)
    work.check("train", counts["train"], 1020)
    work.check("val", counts["val"], 6149)


SETS = {f.__name__: f for f in (imagenet, coco, kinetics400, ssv2, enwik8, pets, flowers)}


def counts_of(text):
    pairs = [part.partition("=") for part in text.split(",") if part]
    if not all(what and number.isdigit() for what, _, number in pairs):
        raise argparse.ArgumentTypeError(f"'{text}': expected counts like train=100,val=10")
    return {what: int(number) for what, _, number in pairs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SETS)
    parser.add_argument("downloads", metavar="DOWNLOADS")
    parser.add_argument("--data-dir", default="datasets", metavar="FOLDER",
                        help="where the data set goes (default datasets)")
    parser.add_argument("--expect", type=counts_of, default={}, metavar="COUNTS",
                        help="other counts than the published")
    arguments = parser.parse_args()
    if not os.path.isdir(arguments.downloads):
        fail(f"{arguments.downloads}: no such folder")
    place = os.path.join(arguments.data_dir, arguments.name)
    if os.path.exists(place):
        fail(f"{place}: is there already: remove it, or give another --data-dir")
    work = Work(arguments.downloads, place + ".part", dict(arguments.expect))
    try:
        os.makedirs(arguments.data_dir, exist_ok=True)
        lock = open(work.made + ".lock", "w")  # held until the end, and removed if the data set is complete
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fail(f"{work.made}: another call is making it")
        shutil.rmtree(work.made, ignore_errors=True)
        os.makedirs(work.made)
        SETS[arguments.name](work)
        if work.expect:
            fail(f"--expect {min(work.expect)}: {arguments.name} has no such count")
        if os.listdir(work.made) == ["enwik8"]:
            os.rename(os.path.join(work.made, "enwik8"), place)
            os.rmdir(work.made)
        else:
            os.rename(work.made, place)
        os.remove(lock.name)
    except KeyboardInterrupt:
        print(f"prepare_data.py: interrupted: {work.made} is incomplete", file=sys.stderr)
        sys.exit(130)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, LookupError) as e:
        fail(f"{work.reading}: damaged, or another file than its name says: {e}")
    except OSError as e:
        fail(f"{e.filename or work.reading}: {e.strerror or e}")
    print(f"{place}: complete")


if __name__ == "__main__":
    main()
