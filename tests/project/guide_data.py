"""Makes the data that the pages of docs/guide use, small: python3 tests/project/guide_data.py FOLDER.

    photos/<class>/*.bmp, labels.csv     three classes
    new.jpg, folder/                     images to predict
    videos/{train,val}/<class>/<clip>/   clips as folders of frames; clip.mp4 and more/ are such folders, too
    datasets/cifar-100-binary/           noise in CIFAR-100's format
    deit_tiny.safetensors                DeiT-Ti's tensors under timm's names, without settings
    coco-sample/, scenes/                pictures with boxes and masks in COCO's format, and with classes of pixels in ADE20K's
    book.txt, recordings/, half.png      a text, a sound, and the upper half of a picture
    images.safetensors, runs/demo-*      short runs of what the pages begin with
"""

import json
import os
import struct
import subprocess
import sys
import wave
import zlib

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "reference"))
import safetensors_io  # noqa: E402

random = np.random.RandomState(5)


def image(path, side=20, bright=0):
    """A BMP file of noise; readers look at the content, not at the ending of the name."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    pixels = random.randint(0, 90, (side, side, 3))
    pixels[..., bright] += 100
    data = pixels.astype(np.uint8).tobytes()
    header = struct.pack("<2sIHHI", b"BM", 54 + len(data), 0, 0, 54)
    header += struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, len(data), 0, 0, 0, 0)
    with open(path, "wb") as file:
        file.write(header + data)


def png(path, pixels):
    """Writes [H,W] grey values or [H,W,3] colours."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(np.uint8))
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
            file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))


def dense():
    for split, other in (("train2017", "training"), ("val2017", "validation")):
        pictures, objects = [], []
        for i in range(1, 9):
            png(f"coco-sample/{split}/{i}.png", random.randint(0, 256, (120, 160, 3)))
            pictures.append({"id": i, "file_name": f"{i}.png", "height": 120, "width": 160})
            objects.append({"id": i, "image_id": i, "category_id": 1 + i % 3, "bbox": [20, 30, 40, 50], "area": 2000,
                            "iscrowd": 0, "segmentation": [[20, 30, 60, 30, 60, 80, 20, 80]]})
            png(f"scenes/images/{other}/{i}.png", random.randint(0, 256, (140, 160, 3)))
            png(f"scenes/annotations/{other}/{i}.png", random.randint(0, 3, (140, 160)))
        os.makedirs("coco-sample/annotations", exist_ok=True)
        with open(f"coco-sample/annotations/instances_{split}.json", "w") as file:
            json.dump({"images": pictures, "annotations": objects,
                       "categories": [{"id": c, "name": f"thing {c}"} for c in (1, 2, 3)]}, file)


def bytes_of_other_kinds():
    with open("book.txt", "w") as file:
        file.write("Call me Ishmael. Some years ago, never mind how long precisely. " * 2000)
    os.makedirs("recordings")
    with wave.open("recordings/tone.wav", "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(12000)
        file.writeframes((np.sin(np.arange(240000) / 20) * 20000).astype("<i2").tobytes())
    png("half.png", random.randint(0, 256, (7, 14)))


def train(program, settings, run):
    subprocess.run([f"build/cpu/{program}", *settings.split(), "--epochs", "1", "--run-dir", run], check=True,
                   stdout=subprocess.DEVNULL)


def runs():
    train("train_vit", "--img-size 64 --patch-size 8 --dim 96 --depth 4 --heads 3 --train-limit 32", "runs/image")
    os.rename("runs/image/best.safetensors", "images.safetensors")
    train("train_detr", "--config configs/coco/shapes-demo.ini", "runs/demo-detector")
    train("train_mask_rcnn", "--config configs/coco/mask-rcnn-demo.ini", "runs/demo-mask-rcnn")
    train("train_semantic_fpn", "--config configs/ade20k/shapes-demo.ini", "runs/demo-semantic-fpn")
    train("train_ar", "--config configs/ar/shapes-demo.ini", "runs/demo-density")


def main():
    os.chdir(sys.argv[1])
    classes = ("apple", "bear", "cat")
    with open("labels.csv", "w") as labels:
        labels.write("file,label,split\n")
        for bright, name in enumerate(classes):
            for i in range(60):
                image(f"photos/{name}/IMG_{i:04}.bmp", bright=bright)
                labels.write(f"{name}/IMG_{i:04}.bmp,{name},{'val' if i < 5 else 'train'}\n")
    image("new.jpg")
    image("folder/one.bmp", bright=1)
    for split, clips in (("train", 8), ("val", 2)):
        for bright, name in enumerate(classes[:2]):
            for clip in range(clips):
                for frame in range(8):
                    image(f"videos/{split}/{name}/clip{clip}/{frame:03}.bmp", 32, bright)
    for frame in range(8):
        image(f"clip.mp4/{frame:03}.bmp", 32)
        image(f"more/clip/{frame:03}.bmp", 32)
    # Two hundred megabytes, which the pages' folders share.
    os.makedirs("../datasets/cifar-100-binary")
    os.symlink("../datasets", "datasets")
    for name, count in (("train", 50000), ("test", 10000)):
        records = np.frombuffer(random.bytes(count * 3074), np.uint8).reshape(count, 3074).copy()
        records[:, 0] %= 20
        records[:, 1] %= 100
        records.tofile(f"datasets/cifar-100-binary/{name}.bin")
    for kind in ("fine", "coarse"):
        with open(f"datasets/cifar-100-binary/{kind}_label_names.txt", "w") as file:
            file.writelines(f"{kind}{i}\n" for i in range(100 if kind == "fine" else 20))
    subprocess.run(["build/cpu/train_vit", "--config", "configs/imagenet/deit-tiny-timm.ini", "--data", "photos", "--batch-size",
                    "8", "--repeated-aug", "false", "--run-dir", "runs/timm"], check=True, stdout=subprocess.DEVNULL)
    dense()
    bytes_of_other_kinds()
    runs()
    tensors, _ = safetensors_io.read("runs/timm/last.safetensors")
    safetensors_io.write("deit_tiny.safetensors", tensors)


if __name__ == "__main__":
    main()
