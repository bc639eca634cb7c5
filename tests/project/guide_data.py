"""Makes what pages of docs/guide find in the reader's folder, small: python3 tests/project/guide_data.py FOLDER PAGE...

MADE says which words of a page need what; the rest is not made.
"""

import json
import os
import re
import struct
import subprocess
import sys
import wave
import zlib

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "reference"))
import safetensors_io  # noqa: E402

random = np.random.RandomState(5)
CLASSES = ("apple", "bear", "cat")


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


def photos():
    """Three classes, in folders and in a table."""
    with open("labels.csv", "w") as labels:
        labels.write("file,label,split\n")
        for bright, name in enumerate(CLASSES):
            for i in range(60):
                image(f"photos/{name}/IMG_{i:04}.bmp", bright=bright)
                labels.write(f"{name}/IMG_{i:04}.bmp,{name},{'val' if i < 5 else 'train'}\n")


def new_images():
    image("new.jpg")
    image("more-photos/one.bmp", bright=1)


def videos():
    """Clips as folders of frames."""
    for split, clips in (("train", 8), ("val", 2)):
        for bright, name in enumerate(CLASSES[:2]):
            for clip in range(clips):
                for frame in range(8):
                    image(f"videos/{split}/{name}/clip{clip}/{frame:03}.bmp", 32, bright)
    for frame in range(8):
        image(f"more/clip/{frame:03}.bmp", 32)


def cifar():
    """Noise in CIFAR-100's format: two hundred megabytes, which the pages' folders share."""
    os.makedirs("../datasets/cifar-100-binary")
    os.symlink("../datasets", "datasets")
    noise = np.frombuffer(random.bytes(1000 * 3074), np.uint8).reshape(1000, 3074).copy()
    noise[:, 0] %= 20
    noise[:, 1] %= 100
    for name, count in (("train", 50000), ("test", 10000)):
        with open(f"datasets/cifar-100-binary/{name}.bin", "wb") as file:
            file.write(noise.tobytes() * (count // len(noise)))
    for kind, count in (("fine", 100), ("coarse", 20)):
        with open(f"datasets/cifar-100-binary/{kind}_label_names.txt", "w") as file:
            file.writelines(f"{kind}{i}\n" for i in range(count))


def checkpoint_of_timm():
    """DeiT-Ti's tensors under timm's names, without settings."""
    train("train_vit", "--config configs/imagenet/deit-tiny-timm.ini --data photos --repeated-aug false", "runs/timm")
    tensors, _ = safetensors_io.read("runs/timm/last.safetensors")
    safetensors_io.write("deit_tiny.safetensors", tensors)


def coco_and_ade20k():
    """Pictures with boxes and masks in COCO's format, and with classes of pixels in ADE20K's."""
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


def text_and_sound():
    with open("book.txt", "w") as file:
        file.write("Call me Ishmael. Some years ago, never mind how long precisely. " * 2000)
    os.makedirs("recordings")
    with wave.open("recordings/tone.wav", "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(12000)
        file.writeframes((np.sin(np.arange(240000) / 20) * 20000).astype("<i2").tobytes())


def half_a_picture():
    png("half.png", random.randint(0, 256, (7, 14)))


def train(program, settings, run):
    subprocess.run([f"build/cpu/{program}", *settings.split(), "--run-dir", run], check=True, stdout=subprocess.DEVNULL)


def image_model():
    train("train_vit", "--img-size 64 --patch-size 8 --dim 96 --depth 4 --heads 3", "runs/image")
    os.rename("runs/image/best.safetensors", "images.safetensors")


def demo(program, config, run):
    return lambda: train(program, f"--config configs/{config}", run)


# Words of a page, and what they need, in this order.
MADE = (
    (r"\bphotos\b", photos),
    (r"\bnew\.jpg\b", new_images),
    (r"\bvideos\b", videos),
    (r"configs/cpu/(study|softmax)\.ini", cifar),
    (r"\bdeit_tiny\.safetensors\b", checkpoint_of_timm),
    (r"\b(coco-sample|scenes)\b", coco_and_ade20k),
    (r"\b(book\.txt|recordings)\b", text_and_sound),
    (r"\bhalf\.png\b", half_a_picture),
    (r"\bimages\.safetensors\b", image_model),
    (r"runs/demo-detector\b", demo("train_detr", "coco/shapes-demo.ini", "runs/demo-detector")),
    (r"runs/demo-mask-rcnn\b", demo("train_mask_rcnn", "coco/mask-rcnn-demo.ini", "runs/demo-mask-rcnn")),
    (r"runs/demo-semantic-fpn\b", demo("train_semantic_fpn", "ade20k/shapes-demo.ini", "runs/demo-semantic-fpn")),
    (r"runs/demo-density\b", demo("train_ar", "ar/shapes-demo.ini", "runs/demo-density")),
)


def main():
    text = ""
    for page in sys.argv[2:]:
        with open(page) as file:
            text += file.read()
    os.chdir(sys.argv[1])
    for words, make in MADE:
        if re.search(words, text):
            make()


if __name__ == "__main__":
    main()
