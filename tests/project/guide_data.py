"""Makes the data that the pages of docs/guide use, small: python3 tests/project/guide_data.py FOLDER.

    photos/<class>/*.bmp, labels.csv     three classes
    new.jpg, folder/                     images to predict
    videos/{train,val}/<class>/<clip>/   clips as folders of frames; clip.mp4 and more/ are such folders, too
    datasets/cifar-100-binary/           noise in CIFAR-100's format
    deit_tiny.safetensors                DeiT-Ti's tensors under timm's names, without settings
"""

import os
import struct
import subprocess
import sys

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
    for split, clips in (("train", 4), ("val", 2)):
        for bright, name in enumerate(classes[:2]):
            for clip in range(clips):
                for frame in range(8):
                    image(f"videos/{split}/{name}/clip{clip}/{frame:03}.bmp", 32, bright)
    for frame in range(8):
        image(f"clip.mp4/{frame:03}.bmp", 32)
        image(f"more/clip/{frame:03}.bmp", 32)
    os.makedirs("datasets/cifar-100-binary")
    for name, count in (("train", 300), ("test", 100)):
        records = random.randint(0, 256, (count, 3074)).astype(np.uint8)
        records[:, 0] = np.arange(count) % 20
        records[:, 1] = np.arange(count) % 100
        records.tofile(f"datasets/cifar-100-binary/{name}.bin")
    for kind in ("fine", "coarse"):
        with open(f"datasets/cifar-100-binary/{kind}_label_names.txt", "w") as file:
            file.writelines(f"{kind}{i}\n" for i in range(100 if kind == "fine" else 20))
    subprocess.run(["build/cpu/train_vit", "--config", "configs/imagenet/deit-tiny-timm.ini", "--data", "photos", "--batch-size",
                    "8", "--repeated-aug", "false", "--run-dir", "runs/timm"], check=True, stdout=subprocess.DEVNULL)
    tensors, _ = safetensors_io.read("runs/timm/last.safetensors")
    safetensors_io.write("deit_tiny.safetensors", tensors)


if __name__ == "__main__":
    main()
