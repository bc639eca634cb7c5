#!/usr/bin/env python3
"""Frames a second from one H.264 video with one thread: vit.c, PyAV and decord.

    make build/cpu/tests/bench_video && python3 scripts/bench/bench_video.py [--video FILE]
    python3 scripts/bench/bench_video.py --harsh --runs 0 compares pixels of blocks with different colours
    python3 scripts/bench/bench_video.py --same FILE...   compares pixels only

Needs numpy and PyAV, and measures decord if it is installed.  Without --video PyAV encodes one: ten seconds of 340x256
at 30 frames a second, moving texture, a key frame every 60 frames, B-frames.  First the pixels are compared, PyAV's
converted with the same flags: versions of libswscale differ in how they enlarge chroma.  decord has libswscale's faster
flags.  Then the best of five alternating runs is reported, in processor time, for all frames in order, and for 16
frames, 4 apart, from several starts, where every clip opens the file again.

--same converts PyAV's decoded frames with the libswscale that vit.c loads, and compares the bytes of the first 40
frames of each file.
"""
import argparse
import ctypes
import ctypes.util
import itertools
import json
import subprocess
import sys
import tempfile
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--video", help="measure this file")
    parser.add_argument("--harsh", action="store_true", help="encode a film of harsh colours")
    parser.add_argument("--program", default="build/cpu/tests/bench_video")
    parser.add_argument("--same", nargs="+", metavar="FILE", help="compare the pixels of these files, measure nothing")
    parser.add_argument("--runs", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import numpy

try:
    import av
except ImportError:
    sys.exit("bench_video.py: pip install av")
try:
    import decord
except ImportError:
    decord = None

CLIPS, T, STEP, SAME = 8, 16, 4, 40
FLAGS = 0x42002  # of libswscale, as in data/video/video.c: bilinear, full_chroma_int, accurate_rnd


def encode(path, harsh, frames=300, height=256, width=340):
    """A texture that moves over another one.  Colours are smooth, or harsh: every block has its own.  Versions differ in
    how they enlarge chroma."""
    colours = 3 if harsh else 1
    draw = numpy.random.default_rng(1)
    y, x = numpy.mgrid[:height, :width]
    tint = numpy.stack([40 * y / height, 40 * x / width, 40 - 40 * x / width], 2)
    ground = draw.integers(0, 128, (height // 4, width // 4, colours)).repeat(4, 0).repeat(4, 1)
    ground = (ground + 50 + tint).astype(numpy.uint8)
    patch = draw.integers(0, 256, (16, 16, colours)).repeat(5, 0).repeat(5, 1).repeat(3 // colours, 2).astype(numpy.uint8)
    with av.open(path, "w") as file:
        stream = file.add_stream("libx264", rate=30, options={"crf": "23", "g": "60", "bf": "3"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for i in range(frames):
            picture = numpy.roll(ground, i // 2, 1).copy()
            y, x = 2 * i % (height - 80), 3 * i % (width - 80)
            picture[y:y + 80, x:x + 80] = patch
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))


def pyav_frames(path):
    with av.open(path) as file:
        stream = file.streams.video[0]
        stream.thread_type, stream.thread_count = "SLICE", 1
        for frame in file.decode(stream):
            yield frame


def pixels_of(frame):
    return frame.reformat(format="rgb24", interpolation=FLAGS).to_ndarray()


def pyav_all(path):
    count = 0
    for frame in pyav_frames(path):
        pixels_of(frame)
        count += 1
    return count


def pyav_clip(path, start):
    """Seeks by time, as loaders built on PyAV do, and converts only what it keeps."""
    with av.open(path) as file:
        stream = file.streams.video[0]
        stream.thread_type, stream.thread_count = "SLICE", 1
        step = round(1 / stream.average_rate / stream.time_base)
        wanted = {(start + i * STEP) * step for i in range(T)}
        file.seek(start * step, stream=stream)
        taken = 0
        for frame in file.decode(stream):
            if frame.pts in wanted:
                pixels_of(frame)
                taken += 1
            if taken == T:
                break
        return taken


def starts(frames):
    spare = frames - (T - 1) * STEP - 1
    return [k * 7919 % spare for k in range(CLIPS)]


def decord_all(path):
    reader = decord.VideoReader(path, num_threads=1)
    for i in range(len(reader)):
        reader[i].asnumpy()
    return len(reader)


def decord_clip(path, start):
    reader = decord.VideoReader(path, num_threads=1)
    return len(reader.get_batch([start + i * STEP for i in range(T)]).asnumpy())


def ours(program, path, *what):
    return json.loads(subprocess.check_output([program, path, *what]))["frames_per_s"]


def rate(work):
    begin = time.process_time()
    frames = work()
    return frames / (time.process_time() - begin)


def compare(program, path):
    own = numpy.frombuffer(subprocess.check_output([program, path, "pixels"]), numpy.uint8)
    want = numpy.stack([pixels_of(frame) for frame in pyav_frames(path)])
    if own.size != want.size:
        sys.exit(f"bench_video.py: {own.size} bytes, PyAV has {want.size}")
    apart = numpy.abs(own.reshape(want.shape).astype(int) - want)
    print(f"{len(want)} frames of {want.shape[2]}x{want.shape[1]}; against PyAV's pixels: {100 * (apart == 0).mean():.2f} % "
          f"equal, largest difference {apart.max()}, mean {apart.mean():.4f}")
    return len(want)


def converted(frame, library):
    """The frame's pixels from this machine's libswscale, with the options of data/video/video.c."""
    planar = {"yuv420p": 0, "yuvj420p": 12}  # AVPixelFormat
    height, width, row = frame.height, frame.width, (3 * frame.width + 63) // 64 * 64
    full, matrix = frame.color_range == 2 or frame.format.name == "yuvj420p", 1 if frame.colorspace == 1 else 5
    library.sws_getContext.restype = ctypes.c_void_p
    library.sws_getCoefficients.restype = ctypes.c_void_p
    coefficients = [ctypes.c_void_p(library.sws_getCoefficients(n)) for n in (matrix, 5)]
    scaler = ctypes.c_void_p(library.sws_getContext(width, height, planar[frame.format.name], width, height, 2, FLAGS,
                                                    None, None, None))
    library.sws_setColorspaceDetails(scaler, coefficients[0], int(full), coefficients[1], 1, 0, 1 << 16, 1 << 16)
    pixels = numpy.empty((height, row), numpy.uint8)
    planes, rows = (ctypes.c_void_p * 4)(*(plane.buffer_ptr for plane in frame.planes)), (ctypes.c_int * 4)(
        *(plane.line_size for plane in frame.planes))
    library.sws_scale(scaler, planes, rows, 0, height, (ctypes.c_void_p * 4)(pixels.ctypes.data), (ctypes.c_int * 4)(row))
    library.sws_freeContext(scaler)
    return pixels[:, :3 * width].tobytes()


def same(program, paths):
    library, mistakes = ctypes.CDLL(ctypes.util.find_library("swscale")), 0
    for path in paths:
        with subprocess.Popen([program, path, "pixels"], stdout=subprocess.PIPE) as own:
            equal = [own.stdout.read(3 * frame.height * frame.width) == converted(frame, library)
                     for frame in itertools.islice(pyav_frames(path), SAME)]
            own.kill()
        mistakes += not all(equal)
        print(f"{path}: {sum(equal)} of {len(equal)} frames are the same bytes", flush=True)
    return mistakes


def main():
    arguments = ARGUMENTS
    if arguments.same:
        sys.exit(same(arguments.program, arguments.same) > 0)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.video or folder + "/video.mp4"
        if not arguments.video:
            encode(path, arguments.harsh)
        first = starts(compare(arguments.program, path))
        readers = {
            "vit.c": (lambda: ours(arguments.program, path, "all"),
                      lambda: ours(arguments.program, path, "clips", str(CLIPS), str(T), str(STEP))),
            f"PyAV {av.__version__}": (lambda: rate(lambda: pyav_all(path)),
                                       lambda: rate(lambda: sum(pyav_clip(path, s) for s in first))),
        }
        if decord:
            readers[f"decord {decord.__version__}"] = (lambda: rate(lambda: decord_all(path)),
                                                       lambda: rate(lambda: sum(decord_clip(path, s) for s in first)))
        best = {name: [0, 0] for name in readers}
        for _ in range(arguments.runs):
            for name, works in readers.items():
                for i, work in enumerate(works):
                    best[name][i] = max(best[name][i], work())
        print(f"{'frames/s, one thread':24s} {'all in order':>14s} {f'clips of {T}':>14s}")
        for name, (whole, clips) in best.items():
            print(f"{name:24s} {whole:14.0f} {clips:14.0f}")


if __name__ == "__main__":
    main()
