#!/bin/sh
# Results that a user needs after a run: the log's validation loss, time and memory, accuracies of single classes,
# predictions of whole folders and as JSON, and the scripts that plot a run or convert it for TensorBoard.
#
#   BUILD=build/cpu sh tests/project/test_extras.sh

# shellcheck disable=SC2015,SC2016,SC2046,SC2086,SC2154 # settings are lists of words; a program written here
. "$(dirname "$0")/../tap.sh"
detr=$build/train_detr
plain=$(command -v python3 || echo /usr/bin/python3) # its standard library only
drawing=
for candidate in ${PYTHON:-python3 /usr/bin/python3}; do
    [ -n "$drawing" ] || ! "$candidate" -c 'import matplotlib, numpy' 2>/dev/null || drawing=$candidate
done
MPLCONFIGDIR=$work
export MPLCONFIGDIR

# says NAME WORDS COMMAND...: status 0, and every one of the words, separated by '|', in what it prints.
says() {
    name=$1 rest=$2
    shift 2
    "$@" >out 2>err
    status=$?
    while [ -n "$rest" ]; do
        grep -qF -e "${rest%%|*}" out || status=1
        case $rest in *'|'*) rest=${rest#*|} ;; *) rest= ;; esac
    done
    check "$name" $status "$(tail -n 1 out) $(tail -n 1 err)"
}

# same NAME GOT WANTED
same() {
    [ "$2" = "$3" ]
    check "$1" $? "got '$2', expected '$3'"
}

# == The log =========================================================================================================

run $tiny --epochs 12 --log-every 2 --run-dir whole
awk -F , 'NR > 1 { rows++; evaluated = $2 != last && NR > 2; last = $2
                   if (($7 != "") != ($10 != "") || $11 + 0 < before || $12 + 0 < 1e6) wrong = 1
                   if ($10 != "" && ($10 < 1 || $10 > 4)) wrong = 1
                   before = $11 + 0 }
          END { exit !(rows == 24 && !wrong) }' whole/log.csv
check "val_loss where an evaluation is, times that rise, memory of a process" $? "$(last_row whole)"
run --init whole/last.safetensors --eval
same "--eval has the log's validation loss" "$(sed -n 's/^loss: //p' out)" "$(cells whole val_loss)"
run --init whole/last.safetensors --eval --micro-batch 5
same "whatever the micro-batch" "$(sed -n 's/^loss: //p' out | cut -c 1-6)" \
    "$(cells whole val_loss | cut -c 1-6)"

stops_run 130 part INT '^6,' part/log.csv $tiny --epochs 12 --log-every 2 --run-dir part
check "SIGINT stops a run" $? "status $status"
sleep 1.2
run --resume part
same "a resumed run has the same validation losses" "$(cut -d , -f 1-3,7,10 part/log.csv)" \
    "$(cut -d , -f 1-3,7,10 whole/log.csv)"
same_run whole part
check "and is the same run bit for bit" $? "differs: $differs"

# An operator's column is a mean over the epoch, independently of rows and interruptions.
sticks="$tiny --train-limit 640 --attn ripple --r-max 2 --tau 0.3333 --lr 0.02 --epochs 4"
run $sticks --log-every 20 --run-dir measured
stops_run 130 halted INT '^60,' halted/log.csv $sticks --log-every 20 --run-dir halted
check "SIGINT stops a run inside an epoch" $? "status $status"
sleep 1.2
run --resume halted
same "a resumed run measures the same" "$(cut -d , -f 1,2,13- halted/log.csv)" "$(cut -d , -f 1,2,13- measured/log.csv)"
same_run measured halted
check "and is the same run bit for bit" $? "differs: $differs"
awk -F , 'NR > 1 && !($13 > 0 && $14 > 0 && $14 < 1 && $15 >= 0) { wrong = 1 } { last = now; now = $13 }
          END { exit wrong || last == now }' measured/log.csv
check "and what it measures changes" $? "$(cut -d , -f 13- measured/log.csv | tr '\n' ' ')"
run $sticks --log-every 100 --recompute --run-dir rare
same "with a row an epoch and recomputed blocks the same means" "$(cells rare jsd,tau_ended,tau_equal)" \
    "$(cells measured jsd,tau_ended,tau_equal)"

run $tiny --epochs 1 --run-dir timed
seconds=$(head -c "$(header_size timed/state.safetensors)" timed/state.safetensors | tr , '\n' |
    sed -n 's/.*"vit.c.seconds":"\([0-9.]*\)".*/\1/p')
stem=$(cells timed wall_s)
echo "$seconds $stem" | awk '{ exit !(NF == 2 && $1 >= $2 - 0.05 && $1 > 0) }'
check "the state knows the run's seconds" $? "state $seconds, log $stem"
# The same length, so that the header keeps its size: a run that had trained for 9 of its leading digit more.
later=$(echo "$seconds" | sed 's/^./9/')
sed -i "s/\"vit.c.seconds\":\"$seconds\"/\"vit.c.seconds\":\"$later\"/" timed/state.safetensors
run --resume timed --epochs 2
cells timed wall_s | awk -v least="$later" '{ exit !(least >= 9 && $1 >= least - 0.05) }' # a row has one decimal
check "and a resumed run counts on from them" $? "$(last_row timed), from $later s"

# A log from before the columns existed.
run $tiny --epochs 1 --run-dir older
cut -d , -f 1-10 older/log.csv >log.old
size=$(wc -c <log.old)
bytes=$(wc -c <older/log.csv)
cp log.old older/log.csv
# log_bytes is the seventh number of the state's position; padded, so that the header keeps its length
pad=$(printf "%0${#bytes}d" "$size")
sed -i "s/\(\"vit\.c\.run\":\"\([^ ]* \)\{6\}\)$bytes /\1$pad /" older/state.safetensors
run --resume older --epochs 2
[ "$status" -eq 0 ] && [ "$(sed 's/.*: //' err)" = 'wall_s, peak_bytes' ] && [ "$(wc -l <older/log.csv)" -eq 3 ] &&
    [ "$(awk -F , '{ print NF }' older/log.csv | sort -u)" = 10 ] && [ "$(head -n 2 older/log.csv)" = "$(cat log.old)" ]
check "an older log keeps its columns when it is resumed, and what it lacks is reported" $? "$(last_row older) $(head -n 1 err)"
sed -i '1s/top1/TOP1/' older/log.csv
run --resume older --epochs 3
complains 0 'older/log.csv|columns'
check "another log is named" $? "$(head -n 1 err)"

# == Single classes ==================================================================================================

run --init whole/best.safetensors --eval --confusion confusion.csv --per-class classes.csv
correct=$(tail -n 1 out | awk '{ printf "%.0f", $2 * 32 / 100 }')
[ "$status" -eq 0 ] && awk -F , -v correct="$correct" '
    NR == 1 { wrong = NF != 11 || $1 != "true class" || $2 != "disc"; next }
    { right += $NR; for (i = 2; i <= NF; i++) all += $i; if (NF != 11) wrong = 1 }
    END { exit !(NR == 11 && !wrong && all == 32 && right == correct) }' confusion.csv
check "--confusion: 32 images, and the diagonal is the accuracy" $? "$(tail -n 1 out), $(tail -n 1 confusion.csv)"
[ "$(head -n 1 classes.csv)" = class,name,images,top1,top5,precision ] && awk -F , -v correct="$correct" '
    NR > 1 { images += $3; right += $3 * $4 / 100 }
    END { exit !(NR == 11 && images == 32 && right > correct - 0.01 && right < correct + 0.01) }' classes.csv
check "--per-class: its accuracies make the whole one" $? "$(sed -n 2p classes.csv)"
awk -F , 'NR == FNR { if (FNR > 1) { sum = 0; for (i = 2; i <= NF; i++) { row[FNR] += $i; column[i] += $i }
                                      hits[FNR] = $FNR } next }
          FNR > 1 { if ($3 != row[FNR]) wrong = 1
                    if ($6 != "" && ($6 - 100 * hits[FNR] / column[FNR]) ^ 2 > 1e-6) wrong = 1
                    if ($6 == "" && column[FNR]) wrong = 1 }
          END { exit wrong }' confusion.csv classes.csv
check "and both files agree in images and precision" $?
tail -n 1 out | grep -qE '^top1: [0-9.]+ top5: [0-9.]+$'
check "the accuracy stays the last line" $? "$(tail -n 1 out)"
refuses "--confusion of a picture" 2 'x.png|name it .csv' --init whole/best.safetensors --eval --confusion x.png
refuses "--per-class without --eval" 2 '--per-class|--eval' $tiny --per-class classes.csv --run-dir never
refuses "--confusion to a missing folder" 1 'nowhere/x.csv|No such file' --init whole/best.safetensors --eval \
    --confusion nowhere/x.csv
if command -v "${MPIRUN:-mpirun}" >/dev/null 2>&1 && ldd "$vit" 2>/dev/null | grep -q libmpi; then
    "${MPIRUN:-mpirun}" -np 2 "$vit" --init whole/best.safetensors --eval --confusion two.csv --per-class classes2.csv \
        >out 2>err </dev/null
    cmp -s two.csv confusion.csv && cmp -s classes2.csv classes.csv
    check "two ranks write what one does" $? "$(tail -n 1 out) $(head -n 1 err)"
else
    skip "two ranks write what one does" "no mpirun, or a build without MPI"
fi

# == Predictions =====================================================================================================

mkdir -p pictures/b/deep pictures/.hidden pictures/empty
jpeg=$root/tests/corpus/jpeg
cp "$jpeg/grey.jpg" pictures/z.jpg
cp "$jpeg/colour444.jpg" pictures/b/deep/one.JPG
cp "$jpeg/colour444.jpg" pictures/.hidden/no.jpg
cp "$jpeg/text.jpg" pictures/b/broken.jpg
echo notes >pictures/notes.txt
ln -s .. pictures/b/loop
init="--init whole/best.safetensors"
run $init --predict pictures test:3 --json found.json
[ "$status" -eq 0 ] && [ "$(cut -d : -f 1 out | tr '\n' ' ')" = 'pictures/b/deep/one.JPG pictures/z.jpg test ' ] &&
    [ "$(wc -l <err)" -eq 1 ] && grep -q 'pictures/b/broken.jpg: .*left out' err
check "--predict of a folder: all pictures below it, in order; one that is none is named" $? \
    "$(cut -c 1-40 out | tr '\n' ' ') $(head -n 1 err)"
cp out printed
cat >told.py <<'END'
import json, sys
found = json.load(open("found.json"))
assert [x["file"] for x in found] == ["pictures/b/broken.jpg", "pictures/b/deep/one.JPG", "pictures/z.jpg", "test:3"]
assert set(found[0]) == {"file", "error"} and "JPEG" in found[0]["error"]
lines = [line for line in open("printed") if line.strip()]
for picture, line in zip(found[1:], lines):
    top = picture["predictions"]
    assert len(top) == 5 and len({x["id"] for x in top}) == 5
    assert all(set(x) == {"id", "name", "probability"} for x in top)
    assert all(a["probability"] >= b["probability"] > 0 for a, b in zip(top, top[1:]))
    assert sum(x["probability"] for x in top) <= 1.00001
    wanted = ", ".join("%s %.1f %%" % (x["name"], 100 * x["probability"]) for x in top)
    assert line.strip() == picture["file"] + ": " + wanted, (line, wanted)
END
says "--json is what was printed" "" "$plain" told.py
refuses "--predict of a folder without pictures" 1 'pictures/empty|no pictures' $init --predict pictures/empty
refuses "--json without --predict" 2 '--json|--predict' $init --eval --json x.json
refuses "--json to a missing folder" 1 'nowhere/x.json|No such file' $init --predict test:0 --json nowhere/x.json
mkdir broken && cp "$jpeg/text.jpg" "broken/$(printf 'quote\042 byte\377.jpg')" && cp "$jpeg/text.jpg" broken/b.jpg
run $init --predict broken --json x.json
[ "$status" -eq 1 ] && grep -q 'none of the 2 pictures' err
check "a folder of broken pictures only" $? "$(tail -n 1 err)"
run $init --predict broken test:0 --json odd.json
cat >odd.py <<'END'
import json
assert [x["file"] for x in json.load(open("odd.json"))] == ["broken/b.jpg", 'broken/quote" byte?.jpg', "test:0"]
END
says "--json of a name that is not UTF-8" "" "$plain" odd.py

# == The detector ====================================================================================================

net='--backbone-blocks 1,1,1,1 --backbone-width 4 --dim 16 --ffn 24 --heads 2 --encoder-layers 1 --decoder-layers 2
     --queries 9 --scale-min 64 --scale-max 64 --max-size 96 --crop false --eval-scale 64 --scene-size 64
     --train-limit 12 --val-limit 7 --batch-size 6 --lr 1e-3 --lr-backbone 1e-4'
vit=$detr
run $net --epochs 2 --run-dir boxes
awk -F , 'NR > 1 { rows++; if (!($14 > 0 && $14 < 100) || $16 < 1e6) wrong = 1 }
          END { exit !(rows == 2 && !wrong) }' boxes/log.csv
check "a detector's log has a validation loss, time and memory" $? "$(last_row boxes) $(head -n 1 err)"
run --init boxes/last.safetensors --eval
same "which --eval prints" "$(sed -n 's/^loss: //p' out)" "$(last_row boxes | cut -d , -f 14)"
# Trained on the evaluated images, without dropout and at a learning rate of 0: the last layer's loss is the training
# loss of a model with one decoder layer.
one=$(echo $net | sed 's/--decoder-layers 2/--decoder-layers 1/; s/--batch-size 6/--batch-size 12/')
run $one --epochs 1 --lr 0 --lr-backbone 0 --dropout 0 --weight-decay 0 --run-dir still
[ "$status" -eq 0 ] &&
    last_row still | awk -F , '{ off = (2 * $9 + 5 * $10 + 2 * $11 - $3) / $3; exit !(off ^ 2 < 1e-8) }'
check "the last layer's parts, weighed, are the loss of one layer" $? "$(last_row still)"
run --init boxes/last.safetensors --predict pictures val:2 --draw-score 0 --json boxes.json
cat >boxes.py <<'END'
import json
found = json.load(open("boxes.json"))
assert [x["file"] for x in found] == ["pictures/b/broken.jpg", "pictures/b/deep/one.JPG", "pictures/z.jpg", "val:2"]
assert "error" in found[0]
for picture in found[1:]:
    boxes = picture["predictions"]
    assert picture["width"] > 0 and picture["height"] > 0 and len(boxes) == 9
    assert all(a["score"] >= b["score"] for a, b in zip(boxes, boxes[1:]))
    assert all(len(x["box"]) == 4 and set(x) == {"id", "name", "score", "box"} for x in boxes)
assert found[3]["width"] == found[3]["height"] == 64
END
says "--predict of a folder, and boxes as JSON" "" "$plain" boxes.py
refuses "--draw of a folder of pictures" 2 '--draw|one picture' --init boxes/last.safetensors --predict pictures \
    --draw c.png
vit=$build/train_vit

# == Tables of the papers ============================================================================================

cat >rows.py <<'END'
"""Every row has a config, which describes a model, and every row of the papers' tables is there, or a note why not; every
other config describes a model, too."""
import glob, os, subprocess, sys
root, build = sys.argv[1:]
sys.path.insert(0, os.path.join(root, "scripts"))
for name in ("train_vit", "train_detr", "train_ar"):
    os.environ[name.upper()] = os.path.join(build, name)
import tables
wrong, rows, runs = [], 0, {row.run for table in tables.TABLES.values() for row in table[2]}
for name, (title, paper, table) in tables.TABLES.items():
    numbers = tables.paper_numbers(paper)
    wrong += [f"{name}: no numbers of the paper"] * (paper is not None and not numbers)
    wrong += [f"{name}: no row for {lost}, and no note why" for lost in set(numbers) - {row.paper for row in table}
              if table and "note" not in numbers[lost]]
    for row in table:
        rows += 1
        found = tables.describe(row)
        wrong += [f"{name}: {row.config} describes no model"] * (not found.get("params") and not found.get("mmacs"))
        wrong += [f"{name}: {row.run} starts from {row.after}, which no table trains"] * (row.after not in {None} | runs)
for program, folders in {"train_vit": ("cifar100", "compact", "cpu", "finetune", "imagenet", "video"), "train_ar": ("ar",)}.items():
    for config in (config for folder in folders for config in glob.glob(f"{root}/configs/{folder}/*.ini")):
        told = subprocess.run([tables.PROGRAMS[program], "--config", config, "--describe"], capture_output=True, text=True)
        wrong += [f"{config}: {told.stderr.strip()}"] * (told.returncode != 0 or "params:" not in told.stdout)
print("\n".join(wrong) or f"{rows} rows")
sys.exit(bool(wrong))
END
"$plain" rows.py "$root" "$build" >out 2>err
check "every row of tables.py and every config describes a model, and every row of the papers has one or a note" $? \
    "$(tail -n 1 out) $(tail -n 1 err)"
grep -vqE '^[^,]*(,[^,"]*|,"[^"]*"){4}$' "$root/docs/paper_tables.csv"
[ $? -eq 1 ]
check "paper_tables.csv has five fields in every line" $?

# shows NAME WORDS TABLE RUN...: a line of that table has all of the words.
shows() {
    name=$1 words=$2 table=$3
    shift 3
    TRAIN_VIT=$build/train_vit "$plain" "$root/scripts/tables.py" --table "$table" "$@" >out 2>err
    status=$?
    line=$(grep -F -- "${words%%|*}" out | head -n 1)
    rest=$words
    while [ "$rest" ]; do
        case $line in *"${rest%%|*}"*) ;; *) status=1 ;; esac
        case $rest in *'|'*) rest=${rest#*|} ;; *) rest= ;; esac
    done
    check "$name" $status "$line $(head -n 1 err)"
}

mkdir -p paper/coco-smca paper/imagenet-hylisanet-s-21k paper/imagenet-lisanet-b
printf 'epoch,ap,ap_small,ap_medium,ap_large,infer_s\n50,0.415,0.225,-1,0.6,0.0501\n' >paper/coco-smca/log.csv
echo 'epochs = 50' >paper/coco-smca/config.ini
shows "AP by size and the time of an image" 'smca |41.0 | 41.5 | +0.5|21.9 | 22.5|44.3 | –|59.1 | 60.0|0.059 | 0.050|one seed' \
    ripple-3 paper
printf 'step,epoch,loss,lr,grad_norm,images_per_s,top1\n9,90,1,0,1,1,\n' >paper/imagenet-hylisanet-s-21k/log.csv
printf 'epochs = 90\neval_every = 0\n' >paper/imagenet-hylisanet-s-21k/config.ini
shows "a run that was never evaluated is one" 'HyLiSANet-S, pre-training|one seed' lisa-6 paper
printf 'epoch,top1,top5\n300,84,97\n' >paper/imagenet-lisanet-b/log.csv
echo 'epochs = 300' >paper/imagenet-lisanet-b/config.ini
echo '{"params": 50610496, "infer_images_per_s": 200.0, "infer_bytes": 1797558016}' >paper/imagenet-lisanet-b/bench.json
shows "throughput and memory, and multiply-adds without transforms" 'LiSANet-B |– | 10.42|347 | 200|2.0 | 2.0 ' lisa-7 paper
rm paper/imagenet-lisanet-b/log.csv
shows "also of a row that is not trained" 'LiSANet-B |– | 10.42|347 | 200|2.0 | 2.0 ' lisa-7 paper
echo '{"trainable_params": 1, "infer_images_per_s": 1, "peak_bytes": 1}' >paper/coco-smca/bench.json
shows "speeds without a memory" 'smca |41.0 | 41.5 | +0.5|' ripple-3 paper
printf 'by,operator,grid,infer_ms,train_ms,infer_bytes\nvit.c,lisa,7,1.5,4.25,20000000\nPyTorch,lisa,7,9,9,\n' >block.csv
shows "what bench_block.sh measured" 'lisa 7x7 |18.3 | 20.0 | +1.7|1.2 | 1.5 | +0.3|3.2 | 4.2' lisa-4 block.csv
cat >failing <<'END'
#!/bin/sh
case $* in --help) echo "  softmax  attention" ;; *) echo "no memory" >&2 && exit 1 ;; esac
END
chmod +x failing
GRIDS=7 MODELS=softmax NETS= OUT=$work/failed TRAIN_VIT=$work/failing sh "$root/scripts/bench/bench_block.sh" >out 2>err
[ $? -eq 1 ] && grep -q 'no result for softmax at 7' err && [ "$(wc -l <failed.csv)" -eq 1 ]
check "bench_block.sh records nothing of a program that fails" $? "$(tail -n 1 failed.csv) $(tail -n 1 err)"
shows "what the paper could not run" 'softmax 84x84 |22200.0 | 22243.7|out of memory' lisa-4
shows "and where other numbers are from" "LiSA's Table 5 and FLatten's Figure 6: cswin_t" hosts
mkdir paper/finetune-vit-l16-imagenet
printf 'epoch,top1,top5\n8,85.1,97\n' >paper/finetune-vit-l16-imagenet/log.csv
echo 'epochs = 8' >paper/finetune-vit-l16-imagenet/config.ini
printf 'top1: 85.1000 top5: 97.0000\nreal: 88.7000 of 46837 images with labels\n' >paper/finetune-vit-l16-imagenet/test.txt
shows "ImageNet ReaL" 'I21k: ImageNet |85.30 | 85.10 | -0.20 | 88.62 | 88.70 | +0.08' vit-2 paper
shows "weights that nobody has are named" 'ViT-H/14 JFT: CIFAR-10 |99.50|JFT-300M, which is not public' vit-2

# Hours are operations over their rate, memory 16 bytes a parameter (20 with an average) and the activations.
for row in 'ripple-2 cifar100/deit deit 300 50000 3 16 64' 'vit-2 finetune/vit-l16-imagenet ViT-L/16.I21k:.ImageNet 8 1281167 4 20 64'; do
    set -- $row
    run --config "$root/configs/$2.ini" --describe
    at_once=$(sed -n 's/^memory for \([0-9]*\) images at a time.*/\1/p' out)
    wanted=$(awk -v samples=$(($4 * $5)) -v passes=$6 -v bytes=$7 -v images=$8 -v at_once="$at_once" '
        /^params: / { params = $2 } /^macs: / { macs = $2 } /^activation_bytes: / { kept = $2 }
        END { work = samples * passes * 2 * macs / 3600
              printf "%.1f %.1f %.1f %.1f", work / (0.72 * 224e9), work / (0.3 * 989e12), (bytes * params + kept) / 2^30,
                     (bytes * params + images * kept / at_once / 2) / 2^30 }' out)
    TRAIN_VIT=$build/train_vit "$plain" "$root/scripts/tables.py" --hours --table "$1" >hours
    got=$(grep "^| $3 |" hours | cut -d '|' -f 5-8 | tr -d ',|' | tr -s ' ')
    same "estimated hours and memory of $2" "${got# }" "$wanted "
done

# reproduce.sh with a program that prints its arguments.
mkdir -p programs && printf '#!/bin/sh\necho "${0##*/} $*"\n' >programs/train_vit && chmod +x programs/train_vit
reproduce() { RUNS=$work/paper TRAIN_VIT=$work/programs/train_vit PYTHON=$plain sh "$root/scripts/reproduce.sh" "$@" >out 2>err; }
reproduce lisa-6 hylisanet-s-finetune
grep -q 'hylisanet-s-21k/best.safetensors, which is not there: run imagenet-hylisanet-s-21k first' out
check "a row waits for the one whose weights it needs" $? "$(tail -n 1 out) $(head -n 1 err)"
touch paper/imagenet-hylisanet-s-21k/last.safetensors
reproduce lisa-6 hylisanet-s-21k hylisanet-s-finetune
grep -q 'hylisanet-s-21k, seed 0: done before, not evaluated' out && grep -q 'train_vit --config .*finetune.ini --init .*21k/last.safetensors' out
check "and starts from the last weights of one that was never evaluated" $? "$(tail -n 1 out) $(head -n 1 err)"
echo 'epochs = 91' >paper/imagenet-hylisanet-s-21k/config.ini
reproduce lisa-6 hylisanet-s-21k
grep -q 'hylisanet-s-21k has no state.safetensors' out && ! grep -q '^train_vit' out &&
    [ -s paper/imagenet-hylisanet-s-21k/log.csv ]
check "a run that cannot be continued keeps its log and is not trained again" $? "$(tail -n 1 out) $(head -n 1 err)"
reproduce lisa-8 hylisanet-s
grep -q 'hylisanet-s/best.safetensors, which is not there: run imagenet-hylisanet-s first' out
check "clips start from the weights of images" $? "$(tail -n 1 out) $(head -n 1 err)"
for program in train_mask_rcnn train_semantic_fpn; do cp programs/train_vit programs/$program; done
mkdir -p paper/imagenet-pvt-small paper/coco-mask-rcnn-resnet-50 paper/ade20k-semantic-fpn-resnet-50
touch paper/imagenet-pvt-small/best.safetensors
touch paper/coco-mask-rcnn-resnet-50/last.safetensors paper/ade20k-semantic-fpn-resnet-50/last.safetensors
printf 'step,epoch,loss,lr,grad_norm,images_per_s,ap,ap50\n9,12,1,1e-4,1,2,0.38100,0.58600\n' >paper/coco-mask-rcnn-resnet-50/log.csv
printf 'step,epoch,loss,lr,grad_norm,images_per_s,miou\n9,64,1,1e-4,1,2,0.36700\n' >paper/ade20k-semantic-fpn-resnet-50/log.csv
printf 'epochs = 12\neval_every = 1\n' >paper/coco-mask-rcnn-resnet-50/config.ini
printf 'steps = 80000\nepochs = 64\neval_every = 6\n' >paper/ade20k-semantic-fpn-resnet-50/config.ini
reproduce lisa-9 resnet-50 pvt-small
grep -q 'resnet-50, seed 0: done before, box AP 0.38100' out &&
    grep -q 'train_mask_rcnn --config .*pvt-small.ini --image-size 800x1280 --init .*pvt-small/best.safetensors' out
check "a detector starts from its classifier, and a finished one is known" $? "$(tr '\n' ' ' <out) $(head -n 1 err)"
reproduce lisa-10 resnet-50 pvt-small
grep -q 'resnet-50, seed 0: done before, mIoU 0.36700' out &&
    grep -q 'train_semantic_fpn --config .*pvt-small.ini --image-size 512x2048 --init .*pvt-small/best.safetensors' out
check "and so is a segmentation model" $? "$(tr '\n' ' ' <out) $(head -n 1 err)"
reproduce --bench lisa-7 lisanet-b && size=$(cat paper/imagenet-lisanet-b/bench.json)
reproduce --bench lisa-5 hylisanet-s && size="$size $(cat paper/imagenet-hylisanet-s/bench.json)"
case $size in *'--bench --batch-size 32 '*'--bench --batch-size 64') ;; *) false ;; esac
check "Table 7 is measured with its batch of 32" $? "$size"

# == TensorBoard =====================================================================================================

cat >events.py <<'END'
"""A reader of event files of its own: lengths, both checksums, and every field of every event."""
import glob, math, os, struct, sys

def crc32c(data):  # bit by bit, from RFC 3720
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF

assert crc32c(b"123456789") == 0xE3069283
def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

def varint(data, at):
    n = shift = 0
    while True:
        n |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return n, at

def fields(data):
    at, found = 0, []
    while at < len(data):
        key, at = varint(data, at)
        size = {1: 8, 5: 4}.get(key & 7, 0)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            if key & 7 == 2:
                size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        found.append((key >> 3, value))
    return found

(path,) = glob.glob(os.path.join(sys.argv[1], "events.out.tfevents.*"))
data, at, events = open(path, "rb").read(), 0, []
while at < len(data):
    (length,), (crc,) = struct.unpack_from("<Q", data, at), struct.unpack_from("<I", data, at + 8)
    body, (crc_body,) = data[at + 12:at + 12 + length], struct.unpack_from("<I", data, at + 12 + length)
    assert crc == masked(data[at:at + 8]) and crc_body == masked(body)
    events.append(fields(body))
    at += 16 + length
assert at == len(data) and dict(events[0])[3] == b"brain.Event:2"
header, *rows = [line.rstrip("\n").split(",") for line in open(os.path.join(sys.argv[1], "log.csv"))]
assert len(events) == len(rows) + 1
times = [struct.unpack("<d", dict(event)[1])[0] for event in events]
assert times == sorted(times)
names = {"loss": "loss/train", "val_loss": "loss/validation", "top1": "accuracy/top1", "top5": "accuracy/top5",
         "images_per_s": "speed/images_per_s", "stall": "speed/stall", "peak_bytes": "memory/peak_bytes"}
for event, row in zip(events[1:], rows):
    row = dict(zip(header, row))
    assert dict(event)[2] == int(row.pop("step"))
    if "wall_s" in row:
        row.pop("wall_s")
    values = [dict(fields(value)) for number, value in fields(dict(event)[5]) if number == 1]
    got = {value[1].decode(): struct.unpack("<f", value[2])[0] for value in values}
    wanted = {names.get(key, key): float(text) for key, text in row.items() if text}
    assert set(got) == set(wanted), (got, wanted)
    assert all(math.isclose(got[key], wanted[key], rel_tol=1e-6) for key in wanted)
print(len(events) - 1, "events agree with the log")
END
says "log_to_tensorboard.py" "whole/events.out.tfevents|24 rows" "$plain" "$root/scripts/plots/log_to_tensorboard.py" whole
says "its file has every number of the log, with right checksums" "24 events agree" "$plain" events.py whole
says "again, in place of it" "24 rows" "$plain" "$root/scripts/plots/log_to_tensorboard.py" whole
says "one file still" "24 events agree" "$plain" events.py whole
printf '99,4,1.5' >>whole/log.csv
says "a row that is half written is left out" "24 rows" "$plain" "$root/scripts/plots/log_to_tensorboard.py" whole
sed -i '$d' whole/log.csv
mkdir before && cp log.old before/log.csv
says "log_to_tensorboard.py of an old log, which has no times" "1 rows" "$plain" "$root/scripts/plots/log_to_tensorboard.py" before
says "and its numbers" "1 events agree" "$plain" events.py before
"$plain" "$root/scripts/plots/log_to_tensorboard.py" nowhere >out 2>err
status=$?
complains 1 'nowhere/log.csv|No such file'
check "a folder that is not there" $? "$(head -n 1 err)"

# The log of a run: missing, then with rows, truncated and continued as by --resume, and done.  For a file of events,
# the step of each, and "again" before those that replace earlier ones.
cat >steps.py <<'END'
source = open("events.py").read()
exec(source[:source.index("header, *rows")])
print(*["again " * (7 in event) + str(event[2]) for event in map(dict, events[1:])])
END
timeout 2 "$plain" "$root/scripts/plots/log_to_tensorboard.py" --follow unborn >out 2>err
[ $? -eq 124 ]
check "--follow waits for a log" $? "$(cat out err)"
mkdir followed
timeout 60 "$plain" "$root/scripts/plots/log_to_tensorboard.py" --follow followed >follow.out 2>&1 &
follower=$!
# holds NAME STEPS: does the file have these events within seconds?
holds() {
    for _ in $(seq 100); do
        found=$("$plain" steps.py followed 2>/dev/null)
        [ "$found" != "$2" ] || break
        sleep 0.1
    done
    [ "$found" = "$2" ]
    check "$1" $? "$found $(cat follow.out)"
}
printf 'step,epoch,loss,wall_s\n1,1,2.5,1\n2,1,nan,2\n' >followed/log.csv
holds "and converts it" "1 2"
printf '3,1,2.25,3\n4,1,2.125,4\n5,1,2.1' >>followed/log.csv
holds "then adds its rows" "1 2 3 4"
printf 'step,epoch,loss,wall_s\n1,1,2.5,1\n2,1,nan,2\n3,1,2.25,3\n4,1,2,5\n5,1,1.5,6\n' >followed/log.csv
holds "a row that a resumed run has written otherwise takes the place of the first" "1 2 3 4 again 4 4 5"
kill -0 $follower
check "it goes on until the run is done" $?
echo '6,1,1.25,7' >>followed/log.csv
echo '{"values": {"state": "done"}}' >followed/report.json
wait $follower && grep -q 'vit: 6 rows' follow.out
check "and ends then" $? "$(cat follow.out)"
holds "with every row" "1 2 3 4 again 4 4 5 6"

# == Drawing =========================================================================================================

if [ -z "$drawing" ]; then
    skip "the scripts that draw" "no python3 with matplotlib"
    echo "1..$count"
    [ "$failures" -eq 0 ]
    exit
fi
for run in "a-seed1 10 12" "a 20 26" "b-seed1 9 8" "b-seed0 15 19.5" "b-seed3 1 1"; do
    # shellcheck disable=SC2086 # a name and two accuracies
    set -- $run
    mkdir -p "pairs/$1" && printf 'step,epoch,top1\n1,1,%s\n2,2,\n3,2,%s\n' "$2" "$3" >"pairs/$1/log.csv"
done
mkdir pairs/detector && printf 'step,epoch,ap\n1,1,0.2\n' >pairs/detector/log.csv
says "plot_gap.py prints the mean lead over the seeds that both rows have" "a - b, epoch 2: +5.25 +- 1.25 points, 2 seeds" \
    "$drawing" "$root/scripts/plots/plot_gap.py" pairs a:b --out gap.png
mkdir parts && mv pairs/a-seed1 pairs/b-seed1 parts
says "and keeps the epochs of runs that were made in parts" "a - b, epoch 2: +4.00 points, 1 seed" \
    "$drawing" "$root/scripts/plots/plot_gap.py" parts a:b --out gap.png --save kept.csv
"$drawing" "$root/scripts/plots/plot_gap.py" pairs a:b --out gap.png --save kept.csv >/dev/null
says "which are drawn together" "a - b, epoch 2: +5.25 +- 1.25 points, 2 seeds" \
    "$drawing" "$root/scripts/plots/plot_gap.py" kept.csv a:b --out gap.png
"$drawing" "$root/scripts/plots/plot_gap.py" pairs a:c >out 2>err
status=$?
complains 1 'plot_gap.py: pairs: no seed|a and c'
check "and says which rows have no seed in common" $? "$(head -n 1 err)"
"$drawing" "$root/scripts/plots/plot_gap.py" pairs/a/log.csv a:b >out 2>err
status=$?
complains 1 'plot_gap.py: pairs/a/log.csv: neither a folder'
check "and refuses a file of another kind" $? "$(head -n 1 err)"
cat >drawn.py <<'END'
import sys
sys.path.insert(0, sys.argv[1] + "/scripts/plots")
import plot_gap, plot_attention, numpy as np
plot_gap.draw(plot_gap.runs_of_folder("pairs"), ["a:b"], "gap.png")
axes = plot_gap.plt.gca()  # with its legend below the curves
assert axes.get_legend().get_window_extent().y1 < axes.bbox.y0

# Two layers of two tokens: heads averaged, half of each residual, products in the order of the layers.
a, b = np.array([[[.2, .8], [.5, .5]]]), np.array([[[1, 0], [.25, .75]]])
reached = plot_attention.rollout({"matrix": np.stack([a, b])})
assert np.allclose(reached, (b[0] + np.eye(2)) / 2 @ ((a[0] + np.eye(2)) / 2)) and np.allclose(reached.sum(1), 1)
late = a.copy()
late[0, 0], late[0, :, 0] = np.nan, np.nan  # a class token that is added later
assert np.allclose(plot_attention.rollout({"matrix": np.stack([late])}), np.eye(2))
assert plot_attention.rollout({"matrix": np.full((1, 1, 2, 2), np.nan)}) is None
small, large = np.full(4, 7e-8), np.full(4, 0.4)
scale = plot_attention.Scale([(plot_attention.kind_of(x), x) for x in (small, large)])
norm = scale.style(plot_attention.WEIGHT)["norm"]
assert norm(7e-8) < 0.01 and norm(0.4) == 1 and norm(0.1) > 0.4
# A clip of two frames of 2 x 3 tokens and a class token: a row of the strip has the tokens of its frames.
tokens = np.arange(13.0)
clip = {"weights": tokens.reshape(1, 1, 1, 13), "spatial": tokens.reshape(1, 1, 1, 13), "norms": tokens[None],
        "matrix": np.add.outer(100 * tokens, tokens)[None, None], "queries": np.array([0, 1, 10, 12]),
        "image": np.arange(2 * 4 * 6 * 3.0).reshape(2, 4, 6, 3)}
strip, about = plot_attention.to_strip(clip, {"grid": "2x2x3", "attn": "x"})
order = [0, 1, 2, 3, 7, 8, 9, 4, 5, 6, 10, 11, 12]
assert about == {"grid": "2x6", "attn": "x", "frames": "2"} and strip["weights"][0, 0, 0].tolist() == order
assert (strip["matrix"][0, 0] == np.add.outer(100 * tokens, tokens)[np.ix_(order, order)]).all()
assert strip["queries"].tolist() == [order.index(q) for q in (0, 1, 10, 12)]
assert (strip["image"][:, :6] == clip["image"][0]).all() and (strip["image"][:, 6:] == clip["image"][1]).all()
assert plot_attention.to_strip(clip, {"grid": "3x4"})[0] is clip
print("all of it")
END
says "rollout, strips of clips and the scale of colours" "all of it" "$drawing" drawn.py "$root"
run $init --predict test:3 --attention looks.safetensors
for kind in "" --overlay --rollout --spatial --norms --rank; do
    says "plot_attention.py $kind" "looks$kind.png" "$drawing" "$root/scripts/plots/plot_attention.py" looks.safetensors \
        $kind --out looks$kind.png
done
run --data moving-shapes --frames 5 --tubelet 3 --img-size 64 --patch-size 16 --dim 16 --depth 2 --heads 2 \
    --train-limit 16 --test-limit 16 --batch-size 16 --epochs 1 --warmup-epochs 0 --run-dir moving
run --init moving/last.safetensors --data moving-shapes --predict test:3 --attention moves.safetensors
for kind in "" --overlay --rollout --norms; do
    says "plot_attention.py $kind of a clip" "moves$kind.png" "$drawing" "$root/scripts/plots/plot_attention.py" \
        moves.safetensors $kind --out moves$kind.png
done

echo "1..$count"
[ "$failures" -eq 0 ]
