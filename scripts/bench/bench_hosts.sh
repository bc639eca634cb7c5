#!/bin/sh
# Compares hierarchical models at 224 x 224 with timm's on this machine, and focused attention with each host's own:
# images a second in training and inference, as Markdown tables.
#
#   PYTHON=/path/to/python sh scripts/bench/bench_hosts.sh        a Python with torch and timm (default: python3)
#   sh scripts/bench/bench_hosts.sh --share                       only the share of attention in the multiply-adds, without Python
#
#   MODELS="pvt-v2-b0 swin-t"   models, each a row of each table
#   TABLES="timm focused"       one of them alone: the comparison with timm, or of focused attention with the host's own
#   BATCH=8            images in a batch, on both sides
#   THREADS=N          threads, on both sides (default: the number of cores)
#   SECONDS_EACH=15    approximate seconds for one measurement; if four batches take longer, vit.c reduces them
#   ROUNDS=2           how often everything is measured; the tables have the medians
#   MODES="eager compile"
#   SIDES="224 448"    of the images for the ratios of focused attention
#   PRECISION=float32  or bfloat16, PyTorch's by autocast
#   LIMIT=900          seconds after which a measurement of PyTorch, with its compilation, is stopped
#   TORCH_STEPS=5      number of training steps in PyTorch's median
#   BUILD=build/cpu    folder of train_vit
#
# Measurements of vit.c and PyTorch alternate, so that a change in the machine's speed affects both.  Load averages
# are printed above the tables.
SHARE_ONLY=
case ${1:-} in
-h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
--share) SHARE_ONLY=1 ;;
'') ;;
*) echo "scripts/bench/bench_hosts.sh: unknown argument '$1'; see --help" >&2 && exit 2 ;;
esac
set -eu
CDPATH='' cd "$(dirname "$0")/../.."
export LC_ALL=C # awk reads and writes numbers with points

BATCH=${BATCH:-8}
THREADS=${THREADS:-$(getconf _NPROCESSORS_ONLN)}
SECONDS_EACH=${SECONDS_EACH:-15}
ROUNDS=${ROUNDS:-2}
MODES=${MODES-eager compile}
SIDES=${SIDES-224 448}
PRECISION=${PRECISION:-float32}
MODELS=${MODELS:-pvt-v2-b0 swin-t}
TABLES=${TABLES:-timm focused}
LIMIT=${LIMIT:-900}
TORCH_STEPS=${TORCH_STEPS:-5}
PYTHON=${PYTHON:-python3}
BUILD=${BUILD:-build/cpu}

refuse() { # SETTING, words that are allowed, its words
    for word in $3; do
        case " $2 " in *" $word "*) ;; *) echo "scripts/bench/bench_hosts.sh: $1: '$word' is none of: $2" >&2 && exit 2 ;; esac
    done
}
refuse MODELS "pvt-v2-b0 swin-t" "$MODELS"
refuse TABLES "timm focused" "$TABLES"
refuse MODES "eager compile" "$MODES"
refuse PRECISION "float32 bfloat16" "$PRECISION"

has() { case " $TABLES " in *" $1 "*) ;; *) return 1 ;; esac }

[ "$SHARE_ONLY" ] || ! has timm || "$PYTHON" -c 'import torch, timm' 2>/dev/null || {
    echo "scripts/bench/bench_hosts.sh: $PYTHON has no torch and timm: set PYTHON to a Python that has" >&2
    exit 1
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
: >"$scratch/rows"
env -u PRECISION make -j"$THREADS" "$BUILD/train_vit" >&2

record() { # WORDS: the line of JSON in $scratch/out, with these members in front
    sed -n "s/^{/{$1, /p" "$scratch/out" >"$scratch/line"
    [ -s "$scratch/line" ] || { echo "scripts/bench/bench_hosts.sh: no result for {$1}" >&2 && exit 1; }
    tee -a "$scratch/rows" <"$scratch/line" >&2
}

ours() { # CONFIG, side
    OMP_NUM_THREADS=$THREADS "$BUILD/train_vit" --config "configs/imagenet/$1.ini" --num-classes 1000 --img-size "$2" \
        --bench --batch-size "$BATCH" --precision "$PRECISION" --bench-seconds "$SECONDS_EACH" >"$scratch/out"
    record "\"by\": \"vit.c\", \"of\": \"$1\", \"side\": $2, \"precision\": \"$PRECISION\""
}

timms_name() { case $1 in swin-t) echo swin_tiny_patch4_window7_224 ;; *) echo pvt_v2_b0 ;; esac; }

# A mode that has reached the limit is not tried again.
theirs() { # CONFIG, mode
    ! grep -q "\"of\": \"$1\", .*\"mode\": \"$2\", \"over\"" "$scratch/rows" || return 0
    status=0
    OMP_NUM_THREADS=$THREADS timeout -k 10 "$LIMIT" "$PYTHON" scripts/bench/bench_torch.py --models "timm:$(timms_name "$1")" \
        --modes "$2" --batch "$BATCH" --img-size 224 --num-classes 1000 --precision "$PRECISION" --threads "$THREADS" \
        --steps "$TORCH_STEPS" >"$scratch/out" || status=$?
    case $status in
    124 | 137) printf '{"mode": "%s", "over": %s}\n' "$2" "$LIMIT" >"$scratch/out" ;;
    0) ;;
    *) echo "scripts/bench/bench_hosts.sh: PyTorch's $1, $2, ended with status $status" >&2 && exit 1 ;;
    esac
    record "\"by\": \"PyTorch\", \"of\": \"$1\", \"side\": 224"
}

# The share of attention in the multiply-adds, from the rows of --describe for the blocks' attn.
share() { # CONFIG, side
    "$BUILD/train_vit" --config "configs/imagenet/$1.ini" --num-classes 1000 --img-size "$2" --describe |
        awk -v of="$1" -v side="$2" '$1 ~ /\.attn\.$/ { attn += $(NF - 1) } /^macs:/ { all = $2 / 1e6 }
            END { printf "{\"by\": \"describe\", \"of\": \"%s\", \"side\": %d, ", of, side
                  printf "\"share\": %.4f}\n", attn / all }' >>"$scratch/rows"
}

round=0
[ "$SHARE_ONLY" ] && TABLES=focused ROUNDS=0
uptime >&2
while [ "$round" -lt "$ROUNDS" ]; do
    for host in $MODELS; do
        for mode in $MODES; do
            has timm || continue
            ours "$host" 224
            theirs "$host" "$mode"
        done
        for side in $SIDES; do
            has focused || continue
            ours "$host" "$side"
            ours "flatten-$host" "$side"
        done
    done
    round=$((round + 1))
done
for host in $MODELS; do
    for side in $SIDES; do
        has focused || continue
        share "$host" "$side"
        share "flatten-$host" "$side"
    done
done

if [ "$SHARE_ONLY" ]; then
    echo "| attention's share of multiply-adds |  |"
    echo "|---|--:|"
    sed -n 's/.*"of": "\([^"]*\)", "side": \([0-9]*\), "share": \([0-9.]*\).*/\1 \2 \3/p' "$scratch/rows" |
        awk '{ printf "| %s, %d | %.0f %% |\n", $1, $2, 100 * $3 }'
    exit
fi

"$PYTHON" - "$scratch/rows" <<'END'
import json, os, statistics, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
SPEEDS = {"train": "train_images_per_s", "infer": "infer_images_per_s"}


def rate(by, of, side, key, mode=None):
    speeds = [row[key] for row in rows if (row["by"], row["of"], row["side"]) == (by, of, side)
              and mode in (None, row.get("mode")) and key in row]
    return statistics.median(speeds) if speeds else None


def share(of, side):
    return next(row["share"] for row in rows if (row["by"], row["of"], row["side"]) == ("describe", of, side))


def table(head, lines):
    print("| " + " | ".join(head) + " |\n|---" + "|--:" * (len(head) - 1) + "|")
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print()


limit = next((row["over"] for row in rows if "over" in row), 0)
modes = list(dict.fromkeys(row["mode"] for row in rows if row["by"] == "PyTorch"))
versions = sorted({row["torch"] for row in rows if "torch" in row})
device = next(row["device"] for row in rows if row["by"] == "vit.c")
loads = ", ".join(f"{x:.1f}" for x in os.getloadavg())
precision = next(row["precision"] for row in rows if "precision" in row)
print(f"vit.c: {device}; PyTorch {', '.join(versions) or 'not measured'}; {precision}; load averages {loads}\n")
if modes:
    lines = []
    for of in dict.fromkeys(row["of"] for row in rows if row["by"] == "PyTorch"):
        for name, key in SPEEDS.items():
            own = rate("vit.c", of, 224, key)
            lines.append([f"{of}, {name}", f"{own:.2f}"])
            for mode in modes:
                other = rate("PyTorch", of, 224, key, mode)
                lines[-1] += [f"{other:.2f}", f"{own / other:.2f}"] if other else [f"none in {limit} s", "-"]
    table(["images/s", "vit.c"] + [cell for mode in modes for cell in (f"timm {mode}", f"vit.c / {mode}")], lines)
pairs = list(dict.fromkeys((row["of"], row["side"]) for row in rows if row["by"] == "describe"))
if pairs:
    table(["focused / host, images/s", "train", "infer", "attention's share of multiply-adds", "host's"],
          [[f"{of}, {side}"] + [f"{rate('vit.c', 'flatten-' + of, side, key) / rate('vit.c', of, side, key):.2f}"
                                for key in SPEEDS.values()]
           + [f"{100 * share('flatten-' + of, side):.0f} %", f"{100 * share(of, side):.0f} %"]
           for of, side in pairs if not of.startswith("flatten-")])
END
