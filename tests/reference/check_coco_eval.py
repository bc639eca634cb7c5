"""Compares detection/coco_eval.c with pycocotools (pip install pycocotools) on drawn cases.

    make build/cpu/tests/test_coco_eval
    python3 tests/reference/check_coco_eval.py                  200 drawn cases, the largest difference
    python3 tests/reference/check_coco_eval.py --masks          the same, for masks
    python3 tests/reference/check_coco_eval.py --fixtures       writes tests/fixtures/coco_eval again

A case is an annotation file and a results file; test_coco_eval, given two such files, prints its twelve numbers, and
with masks also writes the results as a file of ours, which pycocotools then reads.  The cases live where rounding and
order decide: boxes on a grid of whole pixels, so that IoUs fall on the thresholds; few different scores, so that they
tie within and across images; areas on the borders of the ranges."""

import argparse
import contextlib
import io
import json
import os
import random
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
FIXTURES = os.path.join(HERE, "..", "fixtures", "coco_eval")
TOOL = os.path.join(HERE, "..", "..", "build", "cpu", "tests", "test_coco_eval")

AREAS = [1023.9, 1024, 1024.5, 9216, 9215.5, 9217, 100, 5000, 20000]


def box_on_grid(draw):
    """Sides of 2 to 140 pixels, often equal to another's or twice as long."""
    side = lambda: draw.choice([2, 4, 8, 10, 16, 20, 32, 40, 64, 96, 128, draw.randint(2, 140)])
    return [draw.randint(0, 30) * 10, draw.randint(0, 20) * 10, side(), side()]


def moved(draw, box):
    """Near `box`: the same, or moved or widened by an amount that gives round IoUs."""
    x, y, w, h = box
    kind = draw.randrange(5)
    if kind == 0:
        return [x, y, w, h]
    if kind == 1:
        return [x + draw.choice([w / 3, w / 7, w / 19, w / 4, 1]), y, w, h]
    if kind == 2:
        return [x, y, w * draw.choice([0.5, 0.55, 0.6, 0.75, 0.8, 0.85, 0.9, 0.95, 2]), h]
    if kind == 3:
        return [x, y, w, h * draw.choice([0.5, 0.65, 0.7, 0.75, 0.9, 0.95, 2])]
    return [x + draw.uniform(-w, w) / 8, y + draw.uniform(-h, h) / 8, w * draw.uniform(0.7, 1.3),
            h * draw.uniform(0.7, 1.3)]


def draw_case(seed):
    draw = random.Random(seed)
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 640, "height": 480}
              for i in draw.sample(range(1, 1000), draw.randint(1, 12))]
    categories = [{"id": k, "name": f"c{k}"} for k in draw.sample(range(1, 91), draw.randint(1, 6))]
    scores = [draw.random() for _ in range(draw.choice([2, 5, 1000]))]
    absent = draw.random() < 0.5  # the last category has no ground truth
    crowds, most = draw.choice([0, 0.1, 0.5]), draw.choice([2, 8, 30])
    truths, results = [], []
    ids = draw.sample(range(0 if seed % 7 == 0 else 1, 100000), 2000)
    for image in images:
        kind = draw.randrange(6)  # 0: neither, 1: ground truth only, 2: detections only
        boxes = []
        for _ in range(draw.randint(1, most) if kind not in (0, 2) else 0):
            category = draw.choice(categories[:-1] if absent and len(categories) > 1 else categories)["id"]
            box = box_on_grid(draw)
            area = draw.choice(AREAS) if draw.random() < 0.4 else box[2] * box[3] * draw.choice([1, 0.7])
            truths.append({"id": ids.pop(), "image_id": image["id"], "category_id": category, "bbox": box, "area": area,
                           "iscrowd": int(draw.random() < crowds)})
            boxes.append((category, box))
        for _ in range(draw.randint(1, 3 * most) if kind not in (0, 1) else 0):
            category, box = (draw.choice(categories)["id"], box_on_grid(draw))
            if boxes and draw.random() < 0.8:
                category, box = draw.choice(boxes)
                box = moved(draw, box)
            if draw.random() < 0.05:
                category = 91 + draw.randrange(3)  # unknown
            results.append({"image_id": image["id"], "category_id": category, "bbox": box,
                            "score": draw.choice(scores)})
    if seed % 5 == 0 and results:  # more than a hundred of one kind
        some = draw.choice(results)
        for _ in range(150):
            results.append(dict(some, bbox=moved(draw, some["bbox"]), score=draw.choice(scores)))
    draw.shuffle(truths)
    draw.shuffle(results)
    return {"images": images, "annotations": truths, "categories": categories}, results


def image(i):
    return {"id": i, "file_name": f"{i}.jpg", "width": 640, "height": 480}


def truth(i, image_id, box, category=1, area=None, crowd=0):
    return {"id": i, "image_id": image_id, "category_id": category, "bbox": box,
            "area": box[2] * box[3] if area is None else area, "iscrowd": crowd}


def found(image_id, box, score, category=1):
    return {"image_id": image_id, "category_id": category, "bbox": box, "score": score}


def named_cases():
    """What the drawn ones may miss, each alone."""
    one = [{"id": 1, "name": "one"}]
    two = one + [{"id": 7, "name": "seven"}]
    column = [[10, 40 * i, 30, 30] for i in range(20)]
    cases = {
        "iou-exactly-half": ([image(1)], [truth(1, 1, [0, 0, 10, 10])], one, [found(1, [0, 0, 20, 10], .9)]),
        "recall-exactly-035": ([image(1)], [truth(i + 1, 1, box) for i, box in enumerate(column)], one,
                               [found(1, box, .9 - .01 * i) for i, box in enumerate(column[:7])] +
                               [found(1, [300, 300, 5, 5], .95), found(1, [400, 300, 5, 5], .845)]),
        "crowd-hit-thrice": ([image(1)], [truth(1, 1, [0, 0, 100, 100], crowd=1), truth(2, 1, [200, 0, 50, 50])], one,
                             [found(1, [5 + 30 * i, 5, 25, 60], .9 - .1 * i) for i in range(3)] +
                             [found(1, [200, 0, 50, 48], .5), found(1, [90, 90, 100, 100], .65)]),
        "area-on-the-borders": ([image(1)], [truth(1, 1, [0, 0, 32, 32]), truth(2, 1, [100, 0, 96, 96]),
                                             truth(3, 1, [300, 0, 33, 33], area=1024.25)], one,
                                [found(1, [0, 0, 32, 32], .5), found(1, [100, 0, 96, 96], .5),
                                 found(1, [300, 0, 33, 33], .5), found(1, [500, 0, 32, 32], .6)]),
        "area-out-of-range": ([image(1)], [truth(1, 1, [0, 0, 50, 50], area=2e10),
                                           truth(2, 1, [100, 0, 50, 50], area=-3)],
                              one, [found(1, [0, 0, 50, 50], .9), found(1, [300, 300, 2e5, 1e5], .8)]),
        "more-than-a-hundred": ([image(1), image(2)],
                                [truth(1, 1, [0, 0, 60, 60]), truth(2, 2, [100, 100, 60, 60])], one,
                                [found(1 + i % 2, [i, i, 60, 60], round(.9 - .004 * i, 3)) for i in range(220)] +
                                [found(1, [0, 0, 60, 60], .01), found(2, [100, 100, 60, 60], .01)]),
        "ties": ([image(1), image(2)], [truth(1, 1, [0, 0, 40, 40]), truth(2, 2, [0, 0, 40, 40]),
                                        truth(3, 2, [0, 0, 40, 40])],
                 one, [found(2, [20, 0, 40, 40], .5), found(2, [0, 0, 40, 40], .5), found(1, [80, 0, 40, 40], .5),
                       found(1, [0, 0, 40, 40], .5), found(2, [0, 10, 40, 40], .5)]),
        "no-ground-truth": ([image(1)], [truth(1, 1, [0, 0, 40, 40], category=7, crowd=1)], two,
                            [found(1, [0, 0, 40, 40], .5), found(1, [0, 0, 40, 40], .5, 7)]),
        "nothing-found": ([image(1), image(2)], [truth(1, 1, [0, 0, 40, 40])], two, [found(2, [0, 0, 1, 1], .5, 55)]),
        "id-zero": ([image(1)], [truth(0, 1, [0, 0, 40, 40]), truth(1, 1, [100, 0, 40, 40])], one,
                    [found(1, [0, 0, 40, 40], .9), found(1, [100, 0, 40, 40], .8)]),
    }
    return {name: ({"images": i, "annotations": a, "categories": c}, r) for name, (i, a, c, r) in cases.items()}


def with_mask(thing, polygons, height, width):
    """Adds the polygons' mask; the box becomes the mask's."""
    from pycocotools import mask as api
    rle = api.merge(api.frPyObjects(polygons, height, width))
    segmentation = {"size": [height, width], "counts": rle["counts"].decode()}
    thing = dict(thing, segmentation=segmentation, bbox=[float(number) for number in api.toBbox(rle)])
    return thing if "area" in thing or "score" in thing else dict(thing, area=int(api.area(rle)))


def polygons_in(box, kind):
    """The box itself, whose IoUs fall on thresholds, a rhombus or two other polygons in it."""
    x, y, w, h = box
    if kind == 0:
        return [[x, y, x + w, y, x + w, y + h, x, y + h]]
    if kind == 1:
        return [[x, y + h / 2, x + w / 2, y, x + w, y + h / 2, x + w / 2, y + h]]
    return [[x, y, x + w, y, x, y + h / 2], [x + w, y + h, x + w, y + h / 3, x + w / 3, y + h]]


def draw_masks(seed):
    annotations, results = draw_case(seed)
    draw, sides = random.Random(-1 - seed), (480, 640)
    common = draw.randrange(3)
    for things in (annotations["annotations"], results):
        for place, thing in enumerate(things):
            kind = common if draw.random() < 0.8 else draw.randrange(3)
            things[place] = with_mask(thing, polygons_in(thing["bbox"], kind), *sides)
    return annotations, results


def worked_masks():
    """Case 9 of the specification of dense prediction."""
    def of(image_id, category, polygon, **more):
        return with_mask({"image_id": image_id, "category_id": category, **more}, [polygon], 40, 50)
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 50, "height": 40} for i in (1, 2)]
    truths = [of(1, 1, [5, 5, 25, 6, 12, 22], id=1, iscrowd=0),
              of(1, 1, [30, 8, 44, 8, 44, 30, 30, 30], id=2, iscrowd=0),
              of(1, 1, [0, 30, 50, 30, 50, 40, 0, 40], id=3, iscrowd=1),
              of(2, 2, [2.5, 3.5, 40, 2, 45.5, 36, 20, 38, 4, 20], id=4, iscrowd=0)]
    results = [of(1, 1, [5, 5, 26, 6, 12, 20], score=.9), of(1, 1, [31, 9, 44, 8, 44, 27, 30, 30], score=.8),
               of(1, 1, [10, 31, 20, 31, 20, 39, 10, 39], score=.7), of(1, 1, [5, 5, 25, 6, 12, 22], score=.6),
               of(2, 2, [2.5, 3.5, 40, 2, 45.5, 30, 20, 38, 4, 20], score=.95),
               of(2, 2, [0, 0, 50, 0, 50, 40, 0, 40], score=.5), of(2, 1, [0, 0, 10, 0, 10, 10, 0, 10], score=.4)]
    categories = [{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]
    return {"images": images, "annotations": truths, "categories": categories}, results


def reference(annotations, results, kind="bbox"):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval
    results = json.loads(json.dumps(results))
    for result in results if kind == "segm" else []:
        del result["bbox"]  # else a detection's area would be its box's
    with contextlib.redirect_stdout(io.StringIO()):
        truths = COCO()
        truths.dataset = json.loads(json.dumps(annotations))
        truths.createIndex()
        evaluation = COCOeval(truths, truths.loadRes(results), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [float(number) for number in evaluation.stats]


def write_case(folder, name, annotations, results):
    paths = [os.path.join(folder, f"{name}.{kind}.json") for kind in ("truth", "results")]
    for path, content in zip(paths, (annotations, results)):
        with open(path, "w") as file:
            json.dump(content, file, separators=(",", ":"))
            file.write("\n")
    return paths


def write_fixtures():
    os.makedirs(FIXTURES, exist_ok=True)
    cases = named_cases()
    for seed in (5, 7, 11, 18):
        cases[f"drawn-{seed}"] = draw_case(seed)
    with open(os.path.join(FIXTURES, "numbers.txt"), "w") as file:
        for name, (annotations, results) in cases.items():
            write_case(FIXTURES, name, annotations, results)
            file.write(" ".join([name] + [repr(number) for number in reference(annotations, results)]) + "\n")
    cases = {"masks-worked": worked_masks()}
    for seed in (15, 18, 22):
        cases[f"masks-{seed}"] = draw_masks(seed)
    with open(os.path.join(FIXTURES, "mask_numbers.txt"), "w") as file:
        for name, (annotations, results) in cases.items():
            write_case(FIXTURES, name, annotations, results)
            for kind in ("segm", "bbox"):
                numbers = [repr(number) for number in reference(annotations, results, kind)]
                file.write(" ".join([name, kind] + numbers) + "\n")


def check(seeds, tool, masks):
    worst, worst_case, counted, varied = 0, "", 0, [set() for _ in range(12)]
    cases = [(f"drawn {seed}", *draw_case(seed)) for seed in seeds]
    cases += [(name, *case) for name, case in named_cases().items()]
    if masks:
        cases = [(f"drawn {seed}", *draw_masks(seed)) for seed in seeds] + [("worked", *worked_masks())]
    with tempfile.TemporaryDirectory() as folder:
        for name, annotations, results in cases:
            if not results:
                continue  # pycocotools cannot load an empty list
            paths = write_case(folder, "case", annotations, results)
            written = [os.path.join(folder, "written.json")] if masks else []
            output = subprocess.run([tool, *paths, *written], check=True, capture_output=True, text=True).stdout
            if masks:
                with open(written[0]) as file:
                    results = json.load(file)
            want = reference(annotations, results, "segm" if masks else "bbox")
            got = [float(word) for word in output.split()]
            difference = max(abs(a - b) for a, b in zip(got, want, strict=True))
            counted += 1
            for values, number in zip(varied, want):
                values.add(number)
            if not difference <= worst:
                worst, worst_case = difference, name
    print(f"{counted} cases, {min(map(len, varied))} to {max(map(len, varied))} different values of a number; "
          f"largest difference {worst:.3g}{' in ' + worst_case if worst else ''}")
    return worst <= 1e-6


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fixtures", action="store_true", help="write tests/fixtures/coco_eval")
    parser.add_argument("--masks", action="store_true", help="compare masks")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**9), help="of the first drawn case")
    parser.add_argument("--tool", default=TOOL)
    arguments = parser.parse_args()
    if arguments.fixtures:
        write_fixtures()
        return 0
    print(f"--seed {arguments.seed} replays this run")
    seeds = range(arguments.seed, arguments.seed + arguments.cases)
    return 0 if check(seeds, arguments.tool, arguments.masks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
