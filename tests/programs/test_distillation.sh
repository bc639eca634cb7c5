#!/bin/sh
# Distilled models, and a teacher's logits: stored ones and those of a second model.
# TAP on standard output, evidence behind '# '.

# shellcheck disable=SC2012,SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"

lesson="$tiny --train-limit 96 --batch-size 32 --epochs 2 --log-every 1 --lr 1e-3"
token="--pool cls --distilled true"
weights() { tensors "$1/last.safetensors" | cksum; }

# == The teacher =====================================================================================================

succeeds "a teacher trains" $lesson --attn dwconv7 --run-dir teacher
teacher=teacher/best.safetensors
succeeds "--write-logits" --init $teacher --train-limit 96 --write-logits logits.safetensors
grep -q 'logits of the 96 training images' out
check "it says of what" $? "$(cat out)"
run --init $teacher --train-limit 96 --micro-batch 7 --write-logits again.safetensors
if [ -n "$python" ]; then # to rounding: with AVX2 the sums of a product depend on its number of rows
    "$python" - logits.safetensors again.safetensors >worst <<'PYTHON'
import sys
import numpy as np
files = [open(path, "rb").read() for path in sys.argv[1:]]
a, b = (np.frombuffer(data[8 + int.from_bytes(data[:8], "little"):], np.float32) for data in files)
worst = np.abs(a - b).max() / np.sqrt(np.mean(a ** 2))
print(f"{worst:.1e} of the rms")
sys.exit(not (len(a) == 960 and worst < 1e-5))
PYTHON
    check "other micro-batches write the same logits" $? "$(cat worst)"
fi

# == Students ========================================================================================================

for kind in soft hard; do
    succeeds "a $kind lesson from stored logits" $lesson $token --teacher logits.safetensors --distillation $kind \
        --mixup 0.8 --cutmix 1 --reprob 0.25 --run-dir stored-$kind
    succeeds "a $kind lesson from a model" $lesson $token --teacher $teacher --distillation $kind \
        --mixup 0.8 --cutmix 1 --reprob 0.25 --run-dir live-$kind
done
grep -q "teacher: dwconv7, [0-9]* parameters" out
check "the teacher is announced" $? "$(grep teacher: out)"
[ "$(weights stored-soft)" != "$(weights live-soft)" ] && [ "$(weights live-soft)" != "$(weights live-hard)" ]
check "the lessons differ" $?


succeeds "one classifier learns from both" $lesson --teacher $teacher --distillation hard --run-dir one
run $lesson --run-dir without
[ "$(weights one)" != "$(weights without)" ]
check "and not what it learns alone" $?
run $lesson --teacher $teacher --distillation hard --distillation-alpha 0 --run-dir none
[ "$(weights none)" = "$(weights without)" ]
check "alpha 0 leaves the labels alone, bit for bit" $?
succeeds "a distilled model without a teacher" $lesson $token --run-dir alone
run --init alone/last.safetensors --eval
[ "$status" -eq 0 ] && grep -q '^top1:' out
check "it is evaluated" $? "$(tail -n 1 out)"
run $lesson $token --describe
grep -q 'dist_token' out && grep -q 'head_dist' out
check "--describe shows its second token and head" $?
succeeds "fine-tuning on larger images" $lesson $token --img-size 64x32 --init alone/last.safetensors --run-dir larger
succeeds "with another operator" $lesson $token --attn linear --teacher $teacher --distillation hard --run-dir linear

# == The same bits and numbers =======================================================================================

# A learning rate that does not depend on the number of epochs.
steady="$lesson $token --lr-min 1e-3 --distillation soft --mixup 0.8"
for which in logits.safetensors $teacher; do
    rm -rf whole cut small ranks
    run $steady --teacher $which --epochs 3 --run-dir whole
    run $steady --teacher $which --epochs 1 --run-dir cut
    run --resume cut --epochs 3
    [ "$status" -eq 0 ] && [ "$(weights whole)" = "$(weights cut)" ]
    check "a lesson of $which is resumed bit for bit" $? "$(head -n 1 err)"
    run $steady --teacher $which --micro-batch 5 --epochs 3 --run-dir small
    worst=$(curves_agree whole small 1e-3)
    check "parts of batches give the same losses" $? "worst $worst"
    if command -v "${MPIRUN:-mpirun}" >/dev/null 2>&1 && ldd "$vit" 2>/dev/null | grep -q libmpi; then
        timeout -k 5 100 "${MPIRUN:-mpirun}" -np 2 "$vit" $steady --teacher $which --epochs 3 --run-dir ranks >out 2>err </dev/null
        worst=$(curves_agree whole ranks 1e-3)
        check "two ranks give the same losses" $? "worst $worst"
    fi
done

# Without augmentation the model's logits of an image are the stored ones: of that image, and not of another.
plain="$lesson $token --crop-padding 0 --flip false --distillation soft --distillation-alpha 0.9 --epochs 3"
run $plain --teacher $teacher --run-dir plain-live
run $plain --teacher logits.safetensors --run-dir plain-stored
worst=$(curves_agree plain-live plain-stored 1e-4)
check "stored logits are those of their images" $? "worst $worst"
run $plain --val-fraction 0.25 --teacher $teacher --run-dir part-live
run $plain --val-fraction 0.25 --teacher logits.safetensors --run-dir part-stored
worst=$(curves_agree part-live part-stored 1e-4)
check "also where some of the images validate" $? "worst $worst"
plain="$plain --mean 0.5,0.4,0.3 --std 0.25,0.2,0.4"
run $plain --teacher $teacher --run-dir shifted-live
run $plain --teacher logits.safetensors --run-dir shifted-stored
worst=$(curves_agree shifted-live shifted-stored 1e-4)
check "and so where the teacher's images have another normalisation" $? "worst $worst"

# == Refused =========================================================================================================

refuses "a teacher without a loss" 2 "teacher|distillation none|hard" $lesson --teacher $teacher
refuses "a loss without a teacher" 2 "distillation|--teacher" $lesson --distillation soft
refuses "a teacher that is not there" 1 "nowhere.safetensors" $lesson --teacher nowhere.safetensors --distillation soft
refuses "two tokens without the first" 2 "distilled|pool cls" $lesson --distilled true
refuses "two classifiers of another kind" 2 "distilled|head linear" $lesson $token --head tanh
refuses "an operator whose class token joins later" 2 "distilled|convit" $lesson $token --attn convit
refuses "an operator without a class token" 2 "pool|dwconv7" $lesson $token --attn dwconv7
refuses "logits of fewer images" 1 "logits.safetensors|96 images|64 training images" \
    $lesson --train-limit 64 --teacher logits.safetensors --distillation soft
refuses "logits of other classes" 1 "logits.safetensors|classes" \
    $lesson --num-classes 200 --teacher logits.safetensors --distillation soft
refuses "a teacher of other classes" 1 "$teacher|classes" \
    $lesson --num-classes 200 --teacher $teacher --distillation soft
refuses "a teacher of other images" 1 "$teacher|img_size" $lesson --img-size 64 --teacher $teacher --distillation soft
refuses "--write-logits without weights" 2 "write-logits" --write-logits x.safetensors
run $lesson --pool cls --run-dir without-token
refuses "weights without the token" 1 "dist_token|distilled false" $lesson $token --init without-token/last.safetensors
refuses "weights with the token" 1 "dist_token|distilled true" $lesson --pool cls --init alone/last.safetensors

if [ -n "$python" ]; then
    "$python" - <<'PYTHON'
import json
data = open("logits.safetensors", "rb").read()
size = int.from_bytes(data[:8], "little")
header, rest = json.loads(data[8:8 + size]), data[8 + size:]

def write(path, header, rest=rest):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(len(text).to_bytes(8, "little") + text + rest)

other = json.loads(json.dumps(header))
other["__metadata__"]["vit.c.images"] = "shapes 0123456789abcdef"
write("order.safetensors", other)
write("silent.safetensors", {"logits": header["logits"]})
flat = json.loads(json.dumps(header))
flat["logits"]["shape"] = [len(rest) // 4]
write("flat.safetensors", flat)
write("stranger.safetensors", {"x": header["logits"]})
place = 4 * 40 * header["logits"]["shape"][1]
write("damaged.safetensors", header, rest[:place] + b"\0\0\xc0\x7f" + rest[place + 4:]) # not a number
PYTHON
    bad() { refuses "$1" 1 "$2" $lesson --teacher "$3" --distillation soft; }
    bad "logits in another order" "order.safetensors|another order|--write-logits" order.safetensors
    bad "logits that do not tell the order" "silent.safetensors|does not say" silent.safetensors
    bad "logits of one dimension" "flat.safetensors|[images,classes]" flat.safetensors
    refuses "logits that are not finite" 1 "damaged.safetensors|image 40|not finite" $lesson --teacher damaged.safetensors \
        --distillation hard
    bad "a file that is neither" "stranger.safetensors|neither logits" stranger.safetensors
fi
head -c 2000 logits.safetensors >short.safetensors
refuses "half a file of logits" 1 "short.safetensors" $lesson --teacher short.safetensors --distillation soft

echo "1..$count"
[ $failures -eq 0 ]
