"""RandomResizedCrop(224) and flip in other programs, one thread: milliseconds an image, one line of JSON.

    python3 scripts/bench/bench_loader.py torchvision FOLDER SECONDS      on Pillow images, bicubic
    python3 scripts/bench/bench_loader.py ffcv FOLDER SECONDS             FFCV, which stores JPEGs of its own (quality 95)

FOLDER/train/<class>/*.JPEG.  With torchvision each file is opened, decoded to RGB and transformed as by ImageFolder.
The following steps, conversion to a tensor and collation, are not measured here, nor are they for train_vit.
"""

import glob
import json
import os
import sys
import tempfile
import time

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

from PIL import Image


def best_pass(one_pass, count, seconds):
    """Milliseconds an image in the fastest pass, without the first."""
    best, begin, passes = float("inf"), time.perf_counter(), 0
    while passes < 2 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        one_pass()
        took = (time.perf_counter() - start) / count
        best = min(best, took) if passes else best
        passes += 1
    return round(1e3 * best, 4)


def open_rgb(path):
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def torchvision_ms(files, seconds):
    import torch
    from torchvision import transforms

    torch.set_num_threads(1)
    torch.manual_seed(0)
    transform = transforms.Compose([
        transforms.RandomResizedCrop(224, interpolation=transforms.InterpolationMode.BICUBIC),
        transforms.RandomHorizontalFlip()])

    def one_pass():
        for path in files:
            transform(open_rgb(path))
    return best_pass(one_pass, len(files), seconds)


class Pictures:
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return open_rgb(self.files[index]), index


def ffcv_ms(files, seconds):
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip
    from ffcv.writer import DatasetWriter

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "images.beton")
        fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=95), "label": IntField()}
        DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(Pictures(files))
        loader = Loader(path, batch_size=32, num_workers=1, order=OrderOption.RANDOM, os_cache=True, drop_last=False,
                        pipelines={"image": [RandomResizedCropRGBImageDecoder((224, 224)), RandomHorizontalFlip()],
                                   "label": [IntDecoder()]})

        def one_pass():
            for _ in loader:
                pass
        return best_pass(one_pass, len(files), seconds)


def main():
    if len(sys.argv) != 4:
        sys.exit("bench_loader.py: expected torchvision or ffcv, a folder and seconds: see --help")
    program, folder, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    files = sorted(glob.glob(os.path.join(folder, "train", "*", "*")))
    ms = {"torchvision": torchvision_ms, "ffcv": ffcv_ms}[program](files, seconds)
    print(json.dumps({"what": program, "ms": ms}), flush=True)


if __name__ == "__main__":
    main()
