#!/bin/sh
# Tests of train_vit's command line: messages for wrong input, the files of a run, and that a run which was stopped, was
# killed or ran out of disk space can be resumed with the same result.  Prints TAP, with details after '# '.
#
#   BUILD=build/cpu-asan VIT_TEST_QUICK=1 sh tests/programs/test_cli.sh
#
# BUILD is the folder of the program, PYTHON one with numpy.  VIT_TEST_QUICK=1 or SLOW=1 leaves out long tests
# (overfitting), for sanitizer builds.

# shellcheck disable=SC2012,SC2013,SC2015,SC2046,SC2086 # settings are lists of words; no name here holds a space
. "$(dirname "$0")/../tap.sh"

# == Help, description, speed ========================================================================================

succeeds "--help exits 0" --help
missing=
for operator in $(sed -n '/^Attention operators/,/^$/s/^  \([a-z-]*\) .*/\1/p' out); do
    run --attn "$operator" --describe $model
    [ "$status" -eq 0 ] || missing="$missing $operator"
done
run --help
operators=$(sed -n '/^Attention operators/,/^$/p' out | grep -c '^  ')
names=$(cd "$root" && sed -n 's/^ *\.name = "\([a-z-]*\)".*/\1/p' layers/attention/*.c layers/features/*.c)
for operator in $names; do grep -q "^  $operator  *[a-z]" out || missing="$missing $operator"; done
[ -z "$missing" ] && [ "$operators" -ge 3 ]
check "--help names every operator and each describes itself" $? "$operators operators, missing:${missing:- none}"
[ -z "$(awk 'length > 100' out)" ]
check "--help keeps to 100 columns" $? "$(awk 'length > 100' out | head -n 1)"
grep -n '^[^ ].*:$' out | awk -F: '{ at[$2] = $1 } END { exit !(at["data"] && at["data"] < at["model"] &&
    at["model"] < at["training"] && at["training"] < at["in place of training"] && at["training"] < at["run"]) }' &&
    ! grep -q 'Not in this' out && [ "$(grep -n '^Attention operators' out | cut -d : -f 1)" -gt "$(grep -n '^run:' out | cut -d : -f 1)" ]
check "--help goes from data to model, training, modes, files and operators" $? "$(grep '^[^ ].*:$' out | tr '\n' ' ')"

# -h is one screen, with the most important settings.
wrong=
for pair in 'train_vit img-size patch-size show-batch' 'train_detr num-classes scale-max' 'train_ar tokens dim sample complete prompt'; do
    program=${pair%% *}
    "$build/$program" -h >out 2>err && [ ! -s err ] && [ "$(wc -l <out)" -le 32 ] && [ -z "$(awk 'length > 100' out)" ] &&
        [ "$(grep -c "^  $program --" out)" -eq 4 ] && [ "$(grep -c '^  --' out)" -ge 17 ] ||
        wrong="$wrong $program: $(wc -l <out) lines, $(awk 'length > 100' out)"
    for setting in data attn epochs batch-size lr precision init resume run-dir seed describe eval bench parity ${pair#* }; do
        grep -q "^  --$setting " out || wrong="$wrong $program --$setting"
    done
done
[ -z "$wrong" ]
check "-h is one screen of every program" $? "wrong:${wrong:- none}"

# --help WORD: each operator of each program with its paper, and an example that works.
wrong=
for program in train_vit train_detr train_ar; do
    "$build/$program" --help >all
    for operator in $(sed -n '/^Attention .*(--attn)\|^Attention (--attn)\|^Feature maps\|^Relative/,/^$/s/^  \([a-z0-9-]*\) .*/\1/p' all); do
        "$build/$program" --help "$operator" >out 2>err && grep -q "^--[a-z-]* $operator: " out &&
            { [ "$operator" = none ] || grep -q '^Paper: .*arXiv:[0-9]' out; } || wrong="$wrong $program $operator"
        example=$(sed -n "s/^  $program \(--config\)/\1/p" out)
        (cd "$root" && "$build/$program" $example --num-classes 10 --describe || "$build/$program" $example --describe) \
            >shown 2>&1 || wrong="$wrong $example: $(tail -n 1 shown)"
    done
done
[ -z "$wrong" ]
check "--help shows each operator with its paper and an example that works" $? "wrong:${wrong:- none}"
run --help lisa
[ "$(grep -c '^  --lisa-' out)" -eq 4 ] && ! grep -q '^  --r-max' out
check "--help lisa shows the settings of lisa" $? "$(grep '^  --' out | tr '\n' ' ')"
run --help learning-rate
complains 2 "'learning-rate'|'lr'"
check "--help of a word that is another tool's names ours" $? "$(head -n 1 err)"
refuses "--help of an unknown word, with the nearest" 2 "'rippel'|'ripple'" --help rippel
refuses "--help of another tool's word" 2 "'gpu'|build/cuda/train_vit" --help gpu

# Names of settings that users of other tools type, in each program that does not have them.
wrong=
names=$(sed -n 's/^    {"\([a-z0-9_ ]*\)", ".*/\1/p' "$root/core/config/foreign_names.c")
for program in train_vit train_detr train_ar; do
    "$build/$program" --help >all
    for name in $names; do
        flag=--$(echo "$name" | tr _ -)
        grep -q -e "^  $flag\( \|\$\)" all && continue
        "$build/$program" "$flag" >out 2>err
        [ $? -eq 2 ] && [ "$(wc -l <err)" -eq 1 ] && [ ! -s out ] || wrong="$wrong $program $flag"
        ours=$(sed -n "s/.*unknown setting; here it is \(--[a-z0-9-]*\).*/\1/p" err)
        if [ -n "$ours" ]; then
            grep -q -e "^  $ours\( \|\$\)" all || wrong="$wrong $program $flag -> $ours"
        else
            grep -q "unknown setting: [a-zA-Z-][^(]* [^(]* [^(]*" err || wrong="$wrong $program $flag: $(cat err)"
        fi
    done
done
[ -z "$wrong" ] && [ "$(echo "$names" | wc -w)" -gt 150 ]
check "a setting's name in other tools is answered with ours, or with a sentence" $? "wrong:${wrong:- none}"
while read -r typed ours; do
    run $typed
    complains 2 "$ours"
    check "$typed: $ours" $? "$(head -n 1 err)"
done <<'END'
--gpu build/cuda/train_vit|CUDA_VISIBLE_DEVICES
--device=cuda build/cuda/train_vit
--batch --batch-size
--learning-rate --lr
--pretrained --init
--output-dir --run-dir
--num-workers --workers
--model attn|configs/
--export safetensors
--no-flip --flip false
--fp16 bfloat16
--test --eval
END

# If a message names a setting that the user did not type, it gives the source of its value; and the typed setting is
# blamed.
printf '[model]\ndim = 64\nheads = 2\npatch_size = 8\n' >sized.ini
printf '[data]\ndata = cifar20\n' >named.ini
while IFS=: read -r arguments said; do
    run $arguments --describe
    complains 2 "$said"
    check "$arguments: $said" $? "$(head -n 1 err)"
done <<'END'
--img-size 30:--img-size: 30|patch_size 4 (the default; --patch-size sets it)
--img-size 30 --patch-size 4:--img-size: 30|of --patch-size 4
--patch-size 5:--patch-size: |img_size 32 (the default; --img-size sets it)
--dim 100:--dim: heads 6 (the default; --heads sets it) does not divide dim 100
--config sized.ini --img-size 30:--img-size: 30|patch_size 8 (sized.ini:4)
--config sized.ini --heads 3:--heads: 3|dim 64 (sized.ini:2)
--config sized.ini --dim 65:--dim: heads 2 (sized.ini:3)
--config sized.ini --heads 3 --dim 64:--heads: 3 does not divide --dim 64
--config sized.ini --pool cls --attn ripple:--pool: --attn ripple
--r-max 3:--r-max: attn softmax (the default; --attn sets it)
--attn inception --heads 1:--heads: 1|--attn inception
--mlp-conv --pool cls:--pool: --mlp-conv true
--stem hybrid --stem-width 32 --frames 4 --patch-size 1:--stem: hybrid|--frames 4
--eval-resize 8:--eval-resize: 8|img_size 32 (the default
--config named.ini:named.ini:2: data: unknown data set 'cifar20'|'cifar10'
END
"$build/train_ar" --kind text --describe >out 2>err
status=$?
complains 2 '--kind: data shapes (the default; --data sets it) is a set of images, not kind text'
check "train_ar --kind text of a set of images" $? "$(head -n 1 err)"
# Settings in the braces of a message exist, and the first named one is among them.
named=$(cd "$root" && awk '/config_(reject|die)\(/ { call = "" ; open = 1 } open { call = call " " $0 }
    open && /;$/ { print call; open = 0 }' core/*.c core/*/*.c training/*.c layers/*.c layers/*/*.c data/*/*.c train_*.c | python3 -c '
import re, sys
known = {name.replace("-", "_") for page in ("", "-detr", "-mask-rcnn", "-semantic-fpn", "-ar")
         for name in re.findall(r"^\| `(?:--)?([a-z0-9_-]+)", open(f"docs/reference/settings{page}.md").read(), re.M)}
checked = 0
for line in sys.stdin:
    text = "".join(re.findall(r"\"((?:[^\"\\]|\\.)*)\"", line.split("config_", 1)[1]))
    for name in re.findall(r"\{([^}=]*)", text):
        if "%" in name: continue
        checked += 1
        if name not in known: print(name, "in", text[:60])
print(checked)')
if command -v python3 >/dev/null 2>&1; then
    [ "$named" -gt 100 ] 2>/dev/null
    check "messages name settings that exist" $? "$(echo "$named" | tr '\n' ' ')names"
else
    skip "messages name settings that exist" "no python3"
fi
refused=
for file in "$root"/configs/*/*.ini; do
    program=train_vit data='--num-classes 10 --data cifar100'
    case $file in
    */coco/mask-rcnn-*) program=train_mask_rcnn data='--num-classes 80 --data coco' ;;
    */coco/*) program=train_detr ;;
    */ade20k/*) program=train_semantic_fpn data='--num-classes 150 --data ade20k' ;;
    */ar/*) program=train_ar data= ;;
    esac
    "$build/$program" --config "$file" --describe $data >out 2>err ||
        refused="$refused ${file##*/}: $(cat err)"
done
[ -z "$refused" ]
check "every configuration that comes with the programs describes a model" $? "refused:${refused:- none}"
wrong=
while read -r name parameters macs; do # those of the published models; multiply-adds to half a percent
    "$vit" --config "$root/configs/imagenet/$name.ini" --describe >out 2>err
    awk -v p="$parameters" -v m="$macs" '/^params:/ { got = $2 } /^macs:/ { q = $2 / m / 1e6 - 1 }
        END { exit !(got == p && q < 0.005 && q > -0.005) }' out || wrong="$wrong $name"
done <<EOF
pvt-v2-b0 3666760 566
pvt-v2-b1 14009000 2108
pvt-v2-b2 25362856 4027
pvt-v2-b2-li 22553512 3889
swin-t 28288354 4491
swin-s 49606258 8741
flatten-pvt-v2-b0 3594824 580
flatten-pvt-v2-b1 12931240 2219
flatten-pvt-v2-b2 22548264 4251
flatten-swin-t 29192384 4483
flatten-swin-s 50510288 8734
cswin-t 22320552 4324
cswin-s 34643304 6801
flatten-cswin-t 21201768 4324
flatten-cswin-s 35451752 6783
EOF
[ -z "$wrong" ]
check "hosts have the parameters and multiply-adds of their official code" $? "wrong:${wrong:- none}"
"$vit" --config "$root/configs/imagenet/hylisanet-s.ini" --describe --num-classes 1000 --batch-size 1 >out 2>err
grep -qx 'macs_without_transforms: 4502611968' out
check "HyLiSANet-S has the 4.5 G of LiSA's Table 5" $? "$(grep -E '^macs' out | tr '\n' ' ')"

missing=
run --help
maps=$(sed -n '/^Feature maps/,/^$/s/^  \([a-z0-9-]*\) .*/\1/p' out)
kinds=$(sed -n '/^Relative positions/,/^$/s/^  \([a-z0-9-]*\) .*/\1/p' out)
for map in $maps; do
    run --attn linear --feature-map $map --describe $model && [ "$status" -eq 0 ] || missing="$missing $map"
done
for kind in $kinds; do
    run --attn linear --relative $kind --describe $model && [ "$status" -eq 0 ] || missing="$missing $kind"
done
[ -z "$missing" ] && [ "$(echo $maps | wc -w)" -eq 7 ] && [ "$(echo $kinds | wc -w)" -eq 7 ]
check "--help names every feature map and relative encoding, and each describes itself" $? "missing:${missing:- none}"

# The commands that --help shows must work.
run --attn ripple --epochs 3 $model --train-limit 512 --test-limit 32 --run-dir helped
[ "$status" -eq 0 ]
check "--epochs alone works: the default warm-up gives way" $? "$(head -n 1 err)"

big='--img-size 224 --patch-size 16 --num-classes 1000'
while read -r flags params; do
    run --describe $big $(echo "$flags" | tr + ' ')
    tail -n 3 out | tr '\n' ' ' | grep -q "^params: $params macs: [0-9]* activation_bytes: [0-9]* $"
    check "--describe counts $(echo "$flags" | tr + ' ')" $? "$(tail -n 3 out | tr '\n' ' ')"
done <<END
--attn+softmax+--heads+3+--pool+cls 5717416
--attn+softmax+--heads+12+--pool+gap+--rpe+shared 5725780
--attn+softmax+--heads+12+--pool+gap+--rpe+heads 5822008
--attn+linear+--heads+6+--pool+gap 5754280
--attn+ripple+--heads+6+--pool+gap 5770696
--attn+convit+--heads+6+--pool+cls 5710612
--attn+linear+--pool+cls+--feature-map+rfa 5717416
--attn+linear+--pool+cls+--feature-map+t2r 5730088
--attn+linear+--pool+cls+--feature-map+mlp-random-w1 5742376
--attn+linear+--pool+cls+--relative+sincspe 5839912
--attn+linear+--pool+cls+--relative+convspe 6678568
--attn+linear+--pool+cls+--relative+permute 5754664
END

# DeiT's, Swin's, the hybrids' and ViT's counts are timm's, ViT's with dim^2 + dim more for the hidden layer of its
# head; PVT's and FLatten's are those of their own programs, CSwin's of the layers in its paper; LiSA's hierarchies have
# the classifier that reproduces its Table 5, and that of its Table 11.
while read -r config params; do
    run --describe --config "$root/configs/imagenet/$config.ini" --micro-batch 1
    grep -q "^params: $params$" out
    check "configs/imagenet/$config.ini has $params parameters" $? "$(tail -n 3 out | tr '\n' ' ')"
done <<END
vit-b 87158248
vit-l 305376232
vit-h 633685480
deit-tiny-timm 5717416
deit-small 22050664
deit-base 86567656
swin-b 87768224
cswin-b 77382184
lisanet-i 6364456
lisanet-s 24725320
lisanet-b 50610496
hylisanet-s 23996552
hylisanet-b 49991008
lisanet-s-linear 22978888
lisanet-b-linear 47548480
hylisanet-s-linear 22250120
hylisanet-b-linear 46928992
flatten-deit-tiny 6190888
pvt-tiny 13229288
pvt-small 24485864
pvt-medium 44208104
pvt-large 61369320
flatten-pvt-tiny 12150504
flatten-pvt-tiny-reduced 13343976
flatten-pvt-small 21670248
vit-tiny-r-s16 6337704
vit-small-r26-s32 36431912
vit-base-r50-s16 98659112
END

# Multiply-adds in thousands from PyTorch's counter on timm's models, and from PVT's and FLatten's own programs.
while read -r config macs; do
    run --describe --config "$root/configs/imagenet/$config.ini" --micro-batch 1
    ours=$(sed -n 's/^macs: \([0-9]*\)[0-9][0-9][0-9]$/\1/p' out)
    [ -n "$ours" ] && [ $((ours * 1000)) -gt $((macs * 995)) ] && [ $((ours * 1000)) -lt $((macs * 1005)) ]
    check "and $config.ini has $macs thousand multiply-adds within 0.5 %" $? "$ours"
done <<END
pvt-tiny 1933000
pvt-small 3816000
pvt-medium 6660000
pvt-large 9810000
swin-b 15430000
cswin-b 14960000
flatten-pvt-tiny 2037000
flatten-pvt-small 4030000
vit-tiny-r-s16 434000
vit-small-r26-s32 3464000
vit-base-r50-s16 21535000
END

run --describe
plain=$(sed -n 's/^activation_bytes: //p' out)
run --describe --recompute
less=$(sed -n 's/^activation_bytes: //p' out)
[ "$status" -eq 0 ] && [ "$less" -lt $((plain / 3)) ] && grep -q '^recompute: ' out
check "--describe states the bytes that recompute saves" $? "$less of $plain"

run --patch-size 8 --drop-path 0.1 --mlp-ratio=2 --describe
mv out dashes
run --patch_size 8 --drop_path=0.1 --mlp-ratio 2 --describe
[ "$status" -eq 0 ] && cmp -s out dashes
check "dashes and underscores, a space and '=' are the same" $?

run --bench --bench-seconds 0.1 $model --batch-size 16
keys=0
for key in train_images_per_s infer_images_per_s peak_bytes gemm_peak_gflops mfu; do
    grep -q "\"$key\": [0-9.]*[,}]" out && keys=$((keys + 1))
done
[ "$status" -eq 0 ] && [ "$(wc -l <out)" -eq 1 ] && [ $keys -eq 5 ] && grep -q '^{.*}$' out
check "--bench prints one line with its five figures" $? "$(cut -c 1-150 out)"
run --bench --bench-seconds 0.1 --dim 96 --depth 6 --batch-size 4096
batch=$(sed -n 's/.*"batch_size": \([0-9]*\),.*/\1/p' out)
[ "$status" -eq 0 ] && [ "$batch" -lt 4096 ] && grep -q "^bench: batches of $batch images in place of 4096" err &&
    grep -q '^bench: training, batches of' err
check "--bench takes a batch that fits --bench-seconds, and says what it does" $? "$(grep place err)"
run --bench --bench-seconds 0.1 $model --batch-size 16
if [ -n "$python" ]; then
    "$python" -c 'import json; json.load(open("out"))' 2>err
    check "--bench prints JSON" $? "$(tail -n 1 err)"
else
    skip "--bench prints JSON" "no python3 with numpy"
fi

if [ -c /dev/full ]; then
    "$vit" --describe >/dev/full 2>err
    status=$?
    complains 1 'standard output'
    check "output that is lost is an error" $? "status $status: $(head -n 1 err)"
fi

# == Wrong settings ==================================================================================================

refuses "unknown setting, with the nearest" 2 '--atn|--attn' --atn ripple
refuses "unknown operator, with the nearest" 2 "--attn|'rippel'|'ripple'" --attn rippel
stages='--dim 16,32 --patch-size 4 --heads 2'
refuses "fewer depths than stages" 2 '--depth|2 values|--dim 8,16,32 has 3' --dim 8,16,32 --heads 2 --depth 1,2
refuses "heads that do not divide a later stage" 2 '--heads|3|dim 32' --dim 18,32 --heads 3
refuses "as many operators as no hierarchy has" 2 '--attn|3 values|--dim 16,32 has 2' $stages --attn softmax,linear,lisa
refuses "an unknown operator in a list" 2 "--attn|'swim'|'swin'" $stages --attn softmax,swim
refuses "as many windows as no hierarchy has" 2 '--window|3 values|--dim 16,32 has 2' $stages --attn swin --window 7,7,7
refuses "a window that no operator has" 2 '--window|softmax,linear|swin' $stages --attn softmax,linear --window 3
refuses "merged patches that overlap" 2 '--patch-merging: true|--patch-overlap true exclude' $stages --patch-merging --patch-overlap
refuses "merged patches in one stage" 2 '--patch-merging|dim 192 (the default; --dim sets it) makes only one' --patch-merging
refuses "a second norm of patches" 2 '--patch-norm: true|--patch-overlap true exclude' $stages --patch-norm --patch-overlap
refuses "merging that halves an odd grid" 2 '--img-size: 36 is not|of 8|--patch-size 4 doubled' $stages --patch-merging --img-size 36
refuses "a class token that one of two operators has no place for" 2 '--pool|--attn swin has no place|pool cls|gap' $stages --attn softmax,swin --pool cls
refuses "more convolution stages than stages" 2 '--conv-stages|3|2 stages' $stages --conv-stages 3
refuses "stages that halve an odd grid" 2 '--img-size: 36 is not|of 8|patch_overlap' $stages --img-size 36
refuses "as many stripes as no hierarchy has" 2 '--stripe|3 values|--dim 16,32 has 2' $stages --attn cswin --stripe 1,2,7
refuses "stripes that do not divide the grid" 2 "--stripe|3|stage 0's 8x8|0 for the whole grid" $stages --attn cswin --stripe 3
refuses "stripes that one side divides" 2 "--stripe|3|stage 0's 6x8" $stages --attn cswin-focused --stripe 3 --img-size 24x32
refuses "stripes for an odd number of heads" 2 '--heads|3 in stage 0|even|stripe 0' --dim 18,32 --heads 3,2 --attn cswin --stripe 2
refuses "a stripe that no operator has" 2 '--stripe|swin|cswin' $stages --attn swin --stripe 2
refuses "a class token in stripes" 2 '--pool|cswin|no place|gap' $stages --attn cswin --stripe 2 --pool cls
refuses "clips in an operator without time" 2 '--frames|focused-reduced|only rows and columns' --attn focused-reduced --pool gap --data moving-shapes --img-size 64 --frames 4
refuses "padding of patches that do not overlap" 2 '--patch-pad|2|patch_overlap true' $stages --patch-pad 2
refuses "padding that holds a whole patch" 2 '--patch-pad|7|7 pixels wide' $stages --patch-overlap --patch-pad 7
refuses "patches wider than image and padding" 2 '--patch-pad|1|no patch|4x32' $stages --patch-overlap --patch-pad 1 --img-size 4x32
refuses "as many reductions as no hierarchy has" 2 '--reduction|3 values|--dim 16,32 has 2' $stages --attn reduced --reduction 8,4,2
refuses "a reduction that no stage has room for" 2 "--reduction|5|stage 1's 4x4" $stages --attn reduced --reduction 2,5
refuses "a ReLU before a convolution that is not there" 2 '--mlp-relu|mlp_conv' --mlp-relu
refuses "a class token that joins late in a hierarchy" 2 '--pool|convit|single stage|gap' $stages --attn convit \
    --pool cls
refuses "a class token among reduced keys" 2 "--pool|stage 1's keys|reduction 1" $stages --attn reduced \
    --reduction 4,2 --pool cls
refuses "a class token in front of convolution blocks" 2 '--pool|--conv-stages 2|gap' $stages --conv-stages 2 --pool cls
refuses "a stem's stages without a stem" 2 '--stem-blocks|hybrid' --stem-blocks 2,2
stem='--stem hybrid --stem-width 32 --patch-size 1'
refuses "features that are no whole patches" 2 "--patch-size: the stem's 8x8 features of img_size 32 (the default|not multiples of patch_size 3" \
    $stem --patch-size 3
refuses "features that stages cannot halve" 2 "--img-size: the stem's 3x3 features of img_size 36 are not multiples of 2|--patch-size 1 doubled|patch_overlap" \
    $stem --img-size 36 --stem-blocks 1,1,1 $stages --patch-size 1
refuses "channels without groups" 2 '--stem-width|48|multiple of 32' $stem --stem-width 48
refuses "a stage of no blocks" 2 '--stem-blocks|0 in a list' $stem --stem-blocks 1,0
refuses "more stages than a stem has" 2 '--stem-blocks|5 values|4 stages' $stem --stem-blocks 1,1,1,1,1
refuses "a class token with mlp_conv" 2 '--pool|--mlp-conv true|gap' --mlp-conv --pool cls
refuses "a class token with pos_embed conv" 2 '--pool|--pos-embed conv|gap' --pos-embed conv --pool cls
refuses "numbers without an end" 2 "--dim|expected an integer|''" --dim 16,
refuses "unknown pool" 2 "--pool|'mean'|cls, gap, gap-raw or seq" --pool mean
refuses "text for an integer" 2 "--dim|'wide'|integer" --dim wide
refuses "fraction for an integer" 2 "--depth|'1.5'|integer" --depth 1.5
refuses "text for a number" 2 "--lr|'fast'|number" --lr fast
refuses "NaN for a number" 2 "--lr|'nan'" --lr nan
refuses "number out of range" 2 '--drop-path|1.5|0.99' --drop-path 1.5
refuses "integer out of range" 2 '--heads|0|from 1' --heads 0
refuses "more groups of layers than learning rates" 2 '--layer-decay|0.9|64 groups|--depth 63 makes 65' --depth 63 --layer-decay 0.9
refuses "integer that overflows" 2 '--epochs|99999999999999999999' --epochs 99999999999999999999
refuses "unknown augmentation policy" 2 "--aa|'original'|rand-m9-mstd0.5-inc1" --aa original-mstd0.5
refuses "unknown part of a policy" 2 "--aa|'q3'|mstd0.5" --aa rand-m9-q3
refuses "policy out of range" 2 "--aa|'n99'|from 1 to 16" --aa rand-n99
refuses "unknown filling of erased boxes" 2 "--remode|'noise'|pixel" --remode noise
refuses "a probability above 1" 2 '--reprob|1.25|0 to 1' --reprob 1.25
refuses "a negative alpha" 2 '--cutmix|-1' --cutmix -1
refuses "value missing" 2 '--lr|expected' --lr
refuses "stray argument" 2 "'ripple'|--help" ripple
refuses "class token with ripple" 2 '--pool|ripple|gap' --attn ripple --pool cls
refuses "class token that would never join" 2 '--pool|convit|block 10|block 3|gap' --attn convit --pool cls --depth 4
refuses "width that convit cannot do" 2 'convit|10|multiple of 4' --attn convit --dim 10 --heads 2 --describe
refuses "class token with focused" 2 '--pool|focused|gap' --attn focused --pool cls
refuses "position bias without softmax" 2 '--rpe|linear|softmax' --attn linear --rpe heads
refuses "sparse stride beyond the grid" 2 '--sparse-stride|65|64' --attn sparse-strided --sparse-stride 65 --describe
refuses "summary longer than its block" 2 '--sparse-c|9|8' --attn sparse-fixed --sparse-c 9 --describe
refuses "one head to share" 2 'inception|--heads: 1' --attn inception --pool gap --heads 1 --describe
refuses "no channel to convolve" 2 '--inception-heads|4|3' --attn inception --pool gap --heads 4 --inception-heads 4 \
    --describe
refuses "an odd share" 2 'inception_heads|odd' --attn inception --pool gap --dim 45 --heads 3 --inception-heads 2 \
    --describe
refuses "one head split" 2 '--sparse-heads|union' --attn sparse-fixed --sparse-heads split --heads 1 --describe
refuses "unknown feature map, with the nearest" 2 "--feature-map|'performr'|'performer'" --feature-map performr
refuses "unknown relative encoding, with the nearest" 2 "--relative|'ropes'|'rope'" --relative ropes
refuses "ripple with features that may be negative" 2 '--feature-map|--attn ripple|rfa' --attn ripple --feature-map rfa
refuses "relative positions without linear attention" 2 '--relative|linear|ripple' --attn ripple --relative rope
refuses "heads that do not divide dim" 2 '--heads|5|192' --heads 5
refuses "patch_size that does not divide img_size" 2 '--patch-size: img_size 32 (the default; --img-size sets it) is not a multiple|5' --patch-size 5
refuses "longer warm-up than training" 2 '--warmup-epochs|9|5' --epochs 5 --warmup-epochs 9
printf 'warmup_epochs = 5\n' >warm.ini
run --config warm.ini $model --train-limit 64 --test-limit 32 --batch-size 16 --epochs 2 --run-dir shortened
[ "$status" -eq 0 ] && [ ! -s err ] && grep -q '^warmup_epochs = 0$' shortened/config.ini &&
    grep -q '^warmup_epochs: 5 (warm.ini:1) is more than the 2 epochs of the run: shortened to 0 ' out
check "a warm-up of a file that is longer than the run is shortened" $? "$(head -n 1 out) $(head -n 1 err)"
run $model --train-limit 64 --test-limit 32 --batch-size 16 --epochs 5 --run-dir default
[ "$status" -eq 0 ] && [ ! -s err ] && grep -q '^warmup_epochs = 0$' default/config.ini && ! grep -q '^warmup' out
check "the default one is, in silence" $? "$(head -n 1 out) $(head -n 1 err)"
printf 'epochs = 2\nwarmup_epochs = 5\n' >both.ini
refuses "longer warm-up than training in one file" 2 'both.ini:2: warmup_epochs|5|2' --config both.ini
refuses "frames to name without --predict" 2 '--top-frames: counts only with --predict' $tiny --top-frames 2 --run-dir none
mkdir -p mnist
for split in train t10k; do
    { printf '\0\0\010\003\0\0\0\200\0\0\0\034\0\0\0\034'; head -c 100352 /dev/zero; } >mnist/$split-images-idx3-ubyte
    { printf '\0\0\010\001\0\0\0\200'; head -c 128 /dev/zero; } >mnist/$split-labels-idx1-ubyte
done
refuses "clips of a data set that has images" 2 '--frames|8|shapes' --frames 8
refuses "two test crops" 2 '--test-crops|1 or 3' --test-crops 2
run --data moving-shapes --frames 4 --img-size 64 --show-batch clips.png
[ "$status" -eq 0 ] && grep -q '16 training clips of moving-shapes' out && [ -s clips.png ]
check "--show-batch draws clips" $? "$(cat out err)"
refuses "other images than the default img_size" 2 '--data: mnist has images of 28x28|img_size 32 (the default' --data mnist --data-dir .
run $model --data mnist --data-dir . --img-size 32 --batch-size 64 --epochs 1 --run-dir resized
[ "$status" -eq 0 ] && grep -q '28x28 are resized to img_size 32x32' out
check "images of another size are resized when img_size asks for it" $? "$(grep resized out) $(head -n 1 err)"
printf '\037\213\010' >mnist/t10k-labels-idx1-ubyte
refuses "an idx file that is still compressed" 1 't10k-labels-idx1-ubyte|gunzip' $model --data mnist --data-dir . \
    --img-size 32
printf '\0\0\010\001\0\0\0\0' >mnist/t10k-labels-idx1-ubyte
refuses "an idx file of nothing" 1 't10k-labels-idx1-ubyte|its header says that it is empty' $model --data mnist --data-dir . --img-size 32
refuses "fewer classes than the data has" 2 '--num-classes|3|10' --num-classes 3
refuses "batch larger than the data set" 2 '--batch-size|65|64' $tiny --batch-size 65
run $model --train-limit 64 --test-limit 32 --epochs 1 --run-dir shrunk
[ "$status" -eq 0 ] && [ ! -s err ] && grep -q 'fewer than the default batch_size of 512: batch_size is 64$' out &&
    grep -q '^batch_size = 64$' shrunk/config.ini
check "the default batch shrinks to a small data set" $? "$(grep default out) $(head -n 1 err)"
printf 'batch_size = 65\n' >batch.ini
refuses "a batch of a config file does not" 2 'batch.ini:1|65|64' --config batch.ini --train-limit 64
refuses "--eval without weights" 2 '--eval|--init|--resume' --eval
refuses "--predict without weights" 2 '--predict|--init|--resume' --predict test:0
refuses "--predict without images" 2 '--predict' --predict
refuses "--parity without --out" 2 '--parity|--out' --parity in.safetensors
refuses "--out without --parity" 2 '--out|x.safetensors|--parity' --describe --out x.safetensors
refuses "--attention without --predict" 2 '--attention|x.safetensors|--predict' --describe --attention x.safetensors
refuses "two modes at once" 2 '--bench|--describe' --describe --bench

for flag in resume init run-dir config out parity attention predict data-dir; do
    refuses "an empty --$flag" 2 "--$flag|empty|variable" --$flag ""
done
refuses "an empty file among others" 2 '--predict|empty' --predict test:0 ""
refuses "an empty --data" 2 "--data: ''" --data "" --run-dir never
run
[ "$status" -eq 2 ] && [ ! -s out ] && [ "$(grep -c '^  train_vit --' err)" -eq 4 ] && grep -q -e '--help' err &&
    [ ! -e runs ]
check "without arguments it says what to begin with and trains nothing" $? "status $status: $(head -n 1 err)"

refuses "missing config file" 2 "--config|'nowhere.ini'|No such file" --config nowhere.ini
printf '[model]\ndim = 64\nhads = 4\n' >typo.ini
refuses "unknown key in a config file" 2 "typo.ini:3|hads|'heads'|did you mean" --config typo.ini --describe
printf 'dim = 64\nheads = 5\n' >heads.ini
refuses "conflict that a config file made" 2 'heads.ini:2|5|64' --config heads.ini --describe
printf 'describe = true\n' >mode.ini
refuses "mode in a config file" 2 'mode.ini:1|describe' --config mode.ini
refuses "folder for a config file" 2 "--config|'.'" --config .

# == Wrong data ======================================================================================================

refuses "misspelt data set" 2 "data|'cifra10'|'cifar10'" --data cifra10
refuses "missing data folder" 1 'nowhere/cifar|no such folder' --data nowhere/cifar
refuses "data set that was not fetched" 1 'nowhere/data_batch_1.bin|fetch_cifar.sh' --data cifar10 --data-dir nowhere
mkdir empty short count label
refuses "folder without data" 1 'empty|train.bin|data_batch_1.bin' --data empty
head -c 4000 /dev/zero >short/train.bin
refuses "truncated CIFAR file" 1 'short/train.bin|4000 bytes|926 bytes left over' --data short
head -c $((3074 * 7)) /dev/zero >count/train.bin
refuses "wrong number of records" 1 'count/train.bin|7 records|50000' --data count
# 10,000 zero records of CIFAR-10, of which the second has label 10.
printf '\012' | dd of=label/data_batch_1.bin bs=1 seek=3073 2>/dev/null
dd if=/dev/null of=label/data_batch_1.bin bs=3073 seek=10000 2>/dev/null
refuses "label out of range" 1 'label/data_batch_1.bin|record 1|label 10|0 to 9' --data label

# == A run and what it leaves ========================================================================================

succeeds "a run of two epochs" $tiny --epochs 2 --run-dir a --log-every 2
grep -q "$(printf '[\033\r]')" out
[ $? -eq 1 ]
check "progress in a file has no control characters" $? "$(wc -l <out) lines"
ends='[0-9.]+,[0-9]+' # wall_s, peak_bytes
[ "$(head -n 1 a/log.csv)" = \
    step,epoch,loss,lr,grad_norm,images_per_s,top1,top5,stall,val_loss,wall_s,peak_bytes ] &&
    [ "$(grep -cE "^[0-9]+,[12],[0-9.]+,([0-9.e-]+,){2}[0-9.]+,(([0-9.]+)?,){2}[01][0-9.]*,[0-9.]*,$ends\$" \
        a/log.csv)" -eq 4 ] &&
    [ "$(grep -cE "[0-9],[0-9.]+,[0-9.]+,[0-9.]+,[0-9.]+,$ends\$" a/log.csv)" -ge 2 ]
check "log.csv: header, a row every log_every steps, accuracies with the epochs" $? "$(last_row a)"
[ -s a/config.ini ] && [ -s a/last.safetensors ] && [ -s a/best.safetensors ] && [ -s a/state.safetensors ] &&
    [ "$(ls a | wc -l)" -eq 7 ]
check "a run leaves its config, its log, three checkpoints, its page and what that is made of" $? "$(ls a | tr '\n' ' ')"

run --config a/config.ini --describe
mv out described
run $tiny --describe
[ "$status" -eq 0 ] && [ -s out ] && cmp -s out described
check "config.ini reads back as the same model" $?
run --config a/config.ini --run-dir again
same_run a again
check "config.ini repeats the run" $? "differs: $differs"
run --init a/last.safetensors --describe
[ "$status" -eq 0 ] && cmp -s out described
check "a checkpoint carries its settings" $?
# 5 x 7 tokens and the class token are 36 = 6 x 6 positions, as many as in a DeiT-III with a square grid, without that
# of the token.
run $tiny --img-size 20x28 --patch-size 4 --pool cls --epochs 1 --run-dir square
run --init square/last.safetensors --eval
[ "$status" -eq 0 ]
check "a class token whose positions are a square in number" $? "$(cat err)"

run --eval --init a/last.safetensors
line=$(tail -n 1 out)
echo "$line" | grep -qE '^top1: [0-9]+\.[0-9]+ top5: [0-9]+\.[0-9]+$' &&
    [ "$(echo "$line" | awk '{ printf "%.3f,%.3f", $2, $4 }')" = "$(last_row a | cut -d , -f 7,8)" ]
check "--eval of the last weights gives the log's last accuracy" $? "$line"
mv out evaluated
run --eval --resume a
[ "$(tail -n 1 out)" = "$(tail -n 1 evaluated)" ]
check "--eval --resume looks at the same weights" $?

succeeds "--predict of a test image" --init a/last.safetensors --predict test:0 test:31
[ "$(grep -cE '^test:[0-9]+: [a-z]+ [0-9.]+ %, ' out)" -eq 2 ]
check "--predict names classes" $? "$(head -n 1 out)"
# A BMP of 20 x 10 black pixels: both headers, then rows of 60 bytes.
{
    printf 'BM\216\002\0\0\0\0\0\0\066\0\0\0\050\0\0\0\024\0\0\0\012\0\0\0\001\0\030\0\0\0\0\0\130\002\0\0'
    head -c 616 /dev/zero
} >black.bmp
succeeds "--predict of a picture of another size, and where it looked" --init a/best.safetensors --predict black.bmp \
    --attention weights.safetensors
[ -s weights.safetensors ]
check "--attention writes its file" $?
for tensor in weights spatial matrix spatial_matrix norms image queries; do
    head -c 2000 weights.safetensors | grep -q "\"$tensor\""
    check "--attention writes $tensor" $?
done
run $tiny --attn convit --pool cls --convit-local-layers 1 --drop-path 0.2 --epochs 1 --run-dir late
succeeds "--attention where the class token joins late" --init late/last.safetensors --predict test:0 \
    --attention late.safetensors
run $tiny --num-classes 12 --epochs 1 --run-dir twelve
run --init twelve/last.safetensors --predict test:1
[ "$status" -eq 0 ] && grep -qE '^test:1: (class 1[01] [0-9.]+ %, )*[a-z]+ [0-9.]+ %' out && ! grep -q 'class [0-9] ' out
check "--predict gives a number only to classes without a name" $? "$(head -n 1 out)"

refuses "--predict beyond the test images" 2 'test:99999|32' --init a/last.safetensors --predict test:99999
refuses "--predict of test:-1" 2 'test:-1' --init a/last.safetensors --predict test:-1
refuses "--predict of a missing file" 1 'nowhere.png|No such file' --init a/last.safetensors --predict nowhere.png
refuses "--predict of a text file" 1 'typo.ini|PNG' --init a/last.safetensors --predict typo.ini
printf '\211PNG\r\n\032\n\0\0\0\015IHDR\0\0\0\010\0\0\0\010\010\002\0\0\0K\155\051\334\0\0\0\377IDATx' >damaged.png
refuses "--predict of a damaged PNG" 1 'damaged.png' --init a/last.safetensors --predict damaged.png
refuses "--attention to a missing folder" 1 'nowhere/x|No such file' --init a/last.safetensors --predict test:0 \
    --attention nowhere/x

# == Run folders =====================================================================================================

cp a/log.csv log.before
refuses "a folder that holds a run" 1 'a/log.csv|--resume a|--run-dir' $tiny --epochs 1 --run-dir a
cmp -s a/log.csv log.before
check "and the run in it stays as it was" $?
mkdir given && cp a/best.safetensors given/
refuses "a folder with weights" 1 'given/best.safetensors|would replace it|--run-dir' $tiny --epochs 1 --run-dir given
cp -R a unlogged && rm unlogged/log.csv
refuses "a folder with a run whose log is gone" 1 'unlogged|--resume unlogged|--run-dir' $tiny --epochs 1 --run-dir unlogged
cmp -s a/best.safetensors given/best.safetensors && cmp -s a/state.safetensors unlogged/state.safetensors
check "and their files stay as they were" $?
mkdir half && printf 'step,epoch\n2,1\n' >half/log.csv
refuses "a folder where a run saved nothing" 1 'half/log.csv|--run-dir' $tiny --epochs 1 --run-dir half
: >file
refuses "a file in place of the run folder" 1 'cannot make this folder: a file has this name' $tiny --epochs 1 --run-dir file
ln -s nowhere dangling
refuses "a link that leads nowhere as run folder" 1 'dangling|leads nowhere' $tiny --epochs 1 --run-dir dangling
refuses "a file in place of its parent" 1 'file' $tiny --epochs 1 --run-dir file/run
if [ "$(id -u)" -ne 0 ]; then
    mkdir locked && chmod 555 locked
    refuses "a run folder that cannot be made" 1 'locked/run|Permission denied' $tiny --epochs 1 --run-dir locked/run
    refuses "a run folder that cannot be written" 1 'locked/log.csv|Permission denied' $tiny --epochs 1 --run-dir locked
else
    refuses "a run folder that cannot be made" 1 '/proc/vit|cannot make' $tiny --epochs 1 --run-dir /proc/vit
fi
for _ in 1 2; do run $tiny --epochs 1; done
[ -s runs/shapes-softmax-001/state.safetensors ] && [ -s runs/shapes-softmax-002/state.safetensors ]
check "without --run-dir runs are numbered" $? "$(ls runs 2>/dev/null | tr '\n' ' ')"

"$vit" $tiny --epochs 1000 --run-dir busy >/dev/null 2>&1 &
pid=$!
wait_for $pid '^8,' busy/log.csv
kill -s STOP $pid
refuses "--resume of a run that is running" 1 'busy/log.csv|is training in this folder' --resume busy
kill -s KILL $pid
wait $pid 2>/dev/null
refuses "--resume of a missing folder" 1 'nowhere/state.safetensors|--resume' --resume nowhere
refuses "--resume of a folder without a state" 1 'half/state.safetensors|--resume' --resume half
while read -r flag value old; do
    refuses "--resume with another $flag" 2 "--$flag: $value|$old|--init a/last.safetensors" --resume a --$flag $value
done <<END
heads 4 2
dim 32 16
attn linear softmax
rpe heads none
pool cls gap
num-classes 12 10
seed 7 0
train-limit 32 64
data mnist shapes
END
cmp -s a/log.csv log.before
check "and the run stays as it was" $?
refuses "--resume with --init" 2 '--init|--resume' --resume a --init a/last.safetensors
refuses "--resume with --init and a mode" 2 '--init|--resume' --resume a --init a/last.safetensors --eval
cp -R a changed
printf 'log_every = 3\n' >changes.ini
run --resume changed --epochs 3 --lr 1e-3 --config changes.ini
[ "$status" -eq 0 ] && grep -q '^settings changed: lr 0.0005 -> 0.001, epochs 2 -> 3, log_every 2 -> 3$' out
check "--resume says which settings have changed, and --config changes only what it has" $? "$(grep changed: out)"
run --resume changed --epochs 5 --batch-size 32
[ "$status" -eq 0 ] && grep -q '^settings changed: epochs 3 -> 5, batch_size 16 -> 32$' out &&
    [ "$(place changed/state.safetensors | cut -d ' ' -f 1-3)" = '16 5 0' ]
check "between two epochs batch_size may change" $? "$(grep changed: out), $(place changed/state.safetensors)"

# a is after step 8, 2 epochs of 4 batches.
mkdir place && cp a/log.csv place
while read -r numbers words; do
    numbers=$(echo $numbers | tr , ' ')
    restate a/state.safetensors place/state.safetensors '"vit.c.run":"8 2 0 ' "\"vit.c.run\":\"$numbers "
    refuses "--resume at step, epoch, batch $numbers" 1 "place/state.safetensors|$words" --resume place --epochs 9
done <<END
1,2,0 not a position in a run
8,2,7 not a position in a run
12,2,9 batch 9 of an epoch that has 4
2147483647,2,0 not a position in a run
8,999999999,0 not a position in a run
END
restate a/state.safetensors place/state.safetensors '"vit.c.run":"8 2 0 ' '"vit.c.run":"2147483646 2 0 '
refuses "--resume beyond 2^31 steps" 2 '--epochs|step 2147483646|2^31' --resume place --epochs 9
restate a/state.safetensors place/state.safetensors '"vit.c.run":"8 2 0 ' '"vit.c.run":"9 2 1 '
refuses "--resume in an epoch of other batches" 2 '--batch-size|epoch 3 has begun, and 1 of' --resume place \
    --epochs 9 --batch-size 8
refuses "more than 2^31 steps" 2 '--epochs|2^31' $tiny --train-limit 100000 --batch-size 1 --epochs 100000 \
    --run-dir never
restate a/state.safetensors place/state.safetensors '\\nring' '\\nsquare'
grep -q 'square' place/state.safetensors
check "a state with another class name" $?
refuses "--resume with other classes" 1 'place/state.safetensors|other names' --resume place --epochs 9
cp -R a average
succeeds "--resume with an average that the state lacks" --resume average --ema-decay 0.9
refuses "--resume into another folder" 2 '--run-dir|elsewhere|--resume' --resume a --run-dir elsewhere
mkdir weights && cp a/last.safetensors weights/state.safetensors && cp a/log.csv weights
refuses "--resume of weights" 1 'weights/state.safetensors|--init' --resume weights
mkdir cut && head -c 9000 a/state.safetensors >cut/state.safetensors
refuses "--resume of a truncated state" 1 'cut/state.safetensors' --resume cut
run --resume a
[ "$status" -eq 0 ] && grep -q -e --epochs out && cmp -s a/log.csv log.before
check "--resume of a finished run says so" $? "$(tail -n 1 out)"
cp -R a b && head -n 2 log.before >b/log.csv
run --resume b --epochs 3
complains 0 'b/log.csv|missing' && [ "$(tail -n +3 b/log.csv | grep -c '^[0-9,.e+-]*$')" -eq 2 ]
check "--resume with a shortened log warns and goes on" $? "$(head -n 1 err)"

# == Wrong weights ===================================================================================================

init="$tiny --epochs 1 --run-dir never --init"
refuses "--init of a missing file" 1 'nowhere.safetensors|No such file' $init nowhere.safetensors
refuses "--init of a text file" 1 'typo.ini' $init typo.ini
refuses "--init of a folder" 1 'empty' $init empty
head -c 20000 a/last.safetensors >cut.safetensors
refuses "--init of a truncated file" 1 'cut.safetensors' $init cut.safetensors
printf '\377\377\377\377\377\377\377\177{}' >long.safetensors
refuses "--init with an absurd header length" 1 'long.safetensors|longer than the file' $init long.safetensors
printf 'PK\003\004\0\0\010\010 what a zip archive goes on with' >zip.pth
printf '\200\002\212\012\154\374\234\106\371\040\152\250\120\031 pickled' >pickle.pth
for file in zip pickle; do
    refuses "--init of PyTorch's file, a $file" 1 "$file.pth|PyTorch|scripts/convert_weights.py" $init $file.pth
done
a='"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}'
safetensors overlap.safetensors "{$a,"'"b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}}' 24
refuses "--init with overlapping tensors" 1 'overlap.safetensors' $init overlap.safetensors
safetensors outside.safetensors "{$a}" 8
refuses "--init with a tensor beyond the end" 1 'outside.safetensors' $init outside.safetensors
safetensors json.safetensors '{"a":{"dtype":"F32",' 8
refuses "--init with a broken header" 1 'json.safetensors' $init json.safetensors
refuses "--init of another width" 1 'a/last.safetensors|[16]|[32]|another dim (here 32)' $init a/last.safetensors --dim 32
refuses "--init of a less deep model" 1 "a/last.safetensors|2 blocks, but this model has 3|depth (here 3)" $init a/last.safetensors --depth 3
refuses "--init of a deeper model" 1 "a/last.safetensors|2 blocks, but this model has 1" $init a/last.safetensors --depth 1
refuses "--init with a tensor missing" 1 "a/last.safetensors|'blocks.0.attn.feature.w1'|5 others" $init a/last.safetensors --attn linear
refuses "--init with a tensor too many" 1 "a/last.safetensors|'pos_embed' has no place" $init a/last.safetensors --pos-embed none
for file in last state; do
    cp -R a nan.$file && not_a_number nan.$file/$file.safetensors
done
for mode in --eval '--predict test:0' "$tiny --epochs 1 --run-dir never"; do
    refuses "NaN in weights: ${mode##*--}" 1 'nan.last/last.safetensors|holds NaN|at element 0' \
        --init nan.last/last.safetensors $mode
done
refuses "NaN in a state" 1 'nan.state/state.safetensors|param.|holds NaN' --resume nan.state --epochs 9
restate a/last.safetensors distilled.safetensors '"norm.bias"' '"dist_token"'
refuses "--init of a distilled DeiT" 1 'distilled.safetensors|dist_token|distilled true' $init distilled.safetensors
restate a/last.safetensors scaled.safetensors '"blocks.0.norm1.bias"' '"blocks.0.gamma_1"'
refuses "--init with LayerScale" 1 'scaled.safetensors|blocks.0.gamma_1|LayerScale' $init scaled.safetensors
restate a/last.safetensors mixer.safetensors '"blocks.0.norm1.bias"' '"blocks.0.mlp_tokens.fc1.weight"'
refuses "--init of another family" 1 'mixer.safetensors|MLP-Mixer|does not support' $init mixer.safetensors
restate a/last.safetensors stages.safetensors '"blocks[.]' '"stages.0.blocks./g;s/no such/no such'
safetensors pools.safetensors '{"stages.0.blocks.0.mlp.fc1.weight":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}' 16
refuses "--init of another hierarchy" 1 "pools.safetensors|depth 1|not PVTv2's" $init pools.safetensors
refuses "--init of a hierarchy" 1 'stages.safetensors|dim 16 and depth 2|configs/imagenet/pvt-v2' $init stages.safetensors
refuses "--init without a class token" 1 'a/last.safetensors|pool gap' $init a/last.safetensors --pool cls
restate a/last.safetensors hybrid.safetensors '"norm.bias"' '"patch_embed.backbone.conv.weight"'
restate a/last.safetensors staged.safetensors '"norm.bias"' '"patch_embed.backbone.stem.conv.weight"'
refuses "--init of a hybrid" 1 'hybrid.safetensors|stem hybrid is needed' $init hybrid.safetensors
refuses "--init without a stem" 1 'a/last.safetensors|stem none is needed' $init a/last.safetensors $stem
refuses "--init of a stem alone" 1 'hybrid.safetensors|stem_blocks 0 is needed' $init hybrid.safetensors $stem \
    --stem-blocks 1
refuses "--init of a stem's stages" 1 'staged.safetensors|stem_blocks is needed' $init staged.safetensors $stem
restate a/last.safetensors token.safetensors '"norm.bias"' '"cls_token"'
refuses "--init with a class token" 1 'token.safetensors|pool cls' $init token.safetensors
refuses "--init without the class token's position" 1 'token.safetensors|16 positions|class token' \
    $init token.safetensors --pool cls
refuses "--init with other heads" 2 '--heads: 4|a/last.safetensors was trained with 2' $init a/last.safetensors --heads 4
refuses "--eval with other heads" 2 '--heads: 4|trained with 2' --eval --init a/last.safetensors --heads 4

# A file without the settings of its model, like those of other programs.
restate a/last.safetensors foreign.safetensors vit.c.config 'x.config/;s/vit.c.classes/x.classes/;s/vit.c.norm/x.norm'
succeeds "--predict of foreign weights" $model --predict test:0 --init foreign.safetensors
grep -q '^foreign.safetensors: it has no settings of train_vit; .* heads 2, pool gap, .* mean 0.*, std 0' out &&
    grep -qE '^test:0: class [0-9]+ [0-9.]+ %, class' out
check "says what is assumed, and has no names for their classes" $? "$(tail -n 1 out)"
grep -q '^foreign.safetensors: WARNING: .* its weights fit any number: heads 2 (--heads) is assumed, .* without an error$' out
check "and warns that their number of heads is assumed" $? "$(grep WARNING out)"
succeeds "--init of one's own weights" --predict test:0 --init a/last.safetensors
! grep -q WARNING out
check "which have its settings, without a warning" $? "$(grep WARNING out)"
refuses "the weights of another kind of head" 1 'foreign.safetensors|classifier is head linear|head linear is needed' \
    --predict test:0 --init foreign.safetensors $model --head tanh
run $init foreign.safetensors --dim 32 --patch-size 4
grep -q '^foreign.safetensors: its tensors are those of --dim 16 --depth 2 --patch-size 8 --mlp-ratio 4 --pool gap --img-size 32 --num-classes 10; ' out
check "the settings that weights of another size need are named" $? "$(tail -n 2 out)"
run $model --predict test:0 --init foreign.safetensors --data shapes
grep -qE '^test:0: [a-z]+ [0-9.]+ %, [a-z]+ [0-9.]+ %' out
check "but those of the data that the user names" $? "$(tail -n 1 out)"
mv out named
run $model --predict test:0 --init foreign.safetensors --data shapes --mean 0.9,0.9,0.9 --std 1,2,3
[ "$status" -eq 0 ] && ! cmp -s out named && grep -q 'mean 0.9,0.9,0.9, std 1,2,3' out
check "--mean and --std normalise the pixels" $? "$(tail -n 1 out)"
for wrong in '--mean 1' '--std 1,2' '--std 1,0,1' '--mean 1,2,3,4'; do
    refuses "$wrong" 2 "${wrong%% *}|" --predict test:0 $model --init foreign.safetensors $wrong
done
run --predict test:0 --init a/last.safetensors
mv out named
restate a/last.safetensors other.safetensors 'normalisation":"0[.]' 'normalisation":"3.'
run --predict test:0 --init other.safetensors
[ "$status" -eq 0 ] && ! cmp -s out named
check "weights are looked at as they were trained" $? "$(tail -n 1 named), $(tail -n 1 out)"
run $tiny --epochs 1 --mean 0.1,0.2,0.3 --std 0.5,0.5,0.5 --run-dir own.mean
grep -q '^mean = 0.1,0.2,0.3$' own.mean/config.ini && grep -qa 'normalisation":"0.1[0-9]* 0.2' own.mean/last.safetensors
check "a run keeps mean and std, and its weights carry them" $? "$(grep '^mean' own.mean/config.ini)"
refuses "--init of a state" 1 'a/state.safetensors|--resume|last.safetensors' $init a/state.safetensors
[ ! -e never ]
check "a refused start leaves no folder" $?

# == Parity ==========================================================================================================

labels='"labels":{"dtype":"I64","shape":[1],"data_offsets":[768,776]}'
images='"images":{"dtype":"F32","shape":[1,3,8,8],"data_offsets":[0,768]}'
parity="$model --patch-size 4 --out parity.out --parity"
safetensors in.safetensors "{$images,$labels}" 776
succeeds "--parity takes the image size from its file" $parity in.safetensors
refuses "--parity with an --out that cannot be written" 1 'nowhere/out|No such file' $parity in.safetensors \
    --out nowhere/out
rm -f parity.out
refuses "--parity of a missing file" 1 'nowhere.safetensors|No such file' $parity nowhere.safetensors
safetensors bad.safetensors "{\"pictures\":${images#*:},$labels}" 776
refuses "--parity without images" 1 "bad.safetensors|'images'" $parity bad.safetensors
safetensors bad.safetensors '{"images":{"dtype":"F32","shape":[1,4,8,6],"data_offsets":[0,768]},'"$labels}" 776
refuses "--parity with images of four channels" 1 "bad.safetensors|'images'|[B,3,H,W]" $parity bad.safetensors
none='"images":{"dtype":"F32","shape":[1,3,0,8],"data_offsets":[0,0]}'
safetensors bad.safetensors "{$none,"'"labels":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}' 8
refuses "--parity with images without rows" 1 "bad.safetensors|'images'" $parity bad.safetensors
safetensors bad.safetensors "{$images,"'"labels":{"dtype":"I64","shape":[2],"data_offsets":[768,784]}}' 784
refuses "--parity with too many labels" 1 "bad.safetensors|'labels'" $parity bad.safetensors
safetensors bad.safetensors "{$images,"'"labels":{"dtype":"F32","shape":[1],"data_offsets":[768,772]}}' 772
refuses "--parity with labels that are not integers" 1 'bad.safetensors|labels|F32' $parity bad.safetensors
safetensors bad.safetensors "{$images,$labels}" 768 '\0012\0\0\0\0\0\0\0'
refuses "--parity with a label out of range" 1 'bad.safetensors|label 10|0..9' $parity bad.safetensors
safetensors bad.safetensors "{$images,$labels,"'"norm.bias":{"dtype":"F32","shape":[16],"data_offsets":[776,840]}}' 840
refuses "--parity with some of the parameters" 1 'bad.safetensors|no tensor' $parity bad.safetensors
safetensors bad.safetensors "{$images,$labels,"'"module.norm.bias":{"dtype":"F32","shape":[16],"data_offsets":[776,840]}}' 840
refuses "--parity with a parameter by another name" 1 'bad.safetensors|module.norm.bias' $parity bad.safetensors
safetensors bad.safetensors "{$images,$labels}" 776
not_a_number bad.safetensors
refuses "--parity of pixels that are no numbers" 1 "bad.safetensors|'images'|finite" $parity bad.safetensors
clips='"clips":{"dtype":"F32","shape":[1,3,4,4,4],"data_offsets":[0,768]}'
safetensors clips.safetensors "{$clips,$labels}" 776
succeeds "--parity of clips as PyTorch has them" $parity clips.safetensors
rm -f parity.out
safetensors bad.safetensors '{"clips":{"dtype":"F32","shape":[1,4,3,4,4],"data_offsets":[0,768]},'"$labels}" 776
refuses "--parity of clips of four channels" 1 "bad.safetensors|'clips'|[B,3,frames,H,W]" $parity bad.safetensors
safetensors bad.safetensors "{$images,${clips%0,768*}776,1544]},$labels}" 1544
refuses "--parity of images and clips" 1 "bad.safetensors|'images'|'clips'" $parity bad.safetensors
refuses "--parity whose patches do not fit its images" 2 '--patch-size|img_size 8|of patch_size 5' $parity in.safetensors --patch-size 5
[ ! -e parity.out ]
check "a refused --parity writes nothing" $?

# Settings are in the fixture's metadata.  --parity has no dropout, so fixtures with dropout are left out.  The quick form
# takes every eighth fixture, from a first one that changes with the time: test_model compares all of them.
step=1
[ "$slow" = 0 ] || step=8
number=$(($(date +%s) % step))
for fixture in "$root"/tests/fixtures/*.safetensors; do
    number=$((number + 1))
    [ $((number % step)) -eq 0 ] || continue
    name="--parity agrees with the reference on $(basename "$fixture" .safetensors)"
    if [ -z "$python" ]; then
        skip "$name" "no python3 with numpy"
        continue
    fi
    flags=$("$python" "$root/tests/reference/flags.py" "$vit" "$fixture")
    case $flags in *dropout\ 0.*) continue ;; esac
    run $flags --parity "$fixture" --out parity.out
    [ "$status" -eq 0 ] && "$python" "$root/tests/reference/compare_parity.py" "$fixture" parity.out >compared 2>&1
    check "$name" $? "$(grep FAILED compared | head -n 1; tail -n 1 compared | sed 's,.*/,,') $(head -n 1 err)"
done

# == Stopped and resumed =============================================================================================

# Everything is on that a resumed run could lose: warm-up, drop path, an average, clipping, an uneven last micro-batch,
# a learning rate that changes with the step, every augmentation.  128 steps.
rich="$model --train-limit 1024 --test-limit 32 --batch-size 32 --micro-batch 12 --epochs 4 --lr-schedule step
      --layer-decay 0.7 --warmup-epochs 1.5 --drop-path 0.3 --dropout 0.1 --ema-decay 0.9 --clip-grad 1 --run-dir run --aa rand-m9-mstd0.5-inc1
      --reprob 0.25 --mixup 0.8 --cutmix 1 --repeated-aug"

# stopped NAME SIGNAL STATUS PATTERN FILE FLAGS: rich, stopped at that point; repeated if the run ended first.
stopped() {
    mkdir "$1" && cd "$1" || exit 1
    stops_run "$3" run "$2" "$4" "$5" $rich $6
}

steps_done() { place run/state.safetensors | cut -d ' ' -f 1; }

# With a row for every step, a stop is at a row; with a row for every fifth step, usually between two.
for rows in 1 5; do
    mkdir whole.$rows
    (cd whole.$rows && "$vit" $rich --log-every $rows >out 2>err)
    check "the uninterrupted run, a row for $rows steps" $? "$(last_row whole.$rows/run)"

    stopped int.$rows INT 130 '^40,' run/log.csv "--log-every $rows"
    result=$?
    first=$(steps_done)
    [ $result -eq 0 ] && [ "$first" -ge 40 ] && [ "$first" -lt 128 ] && [ ! -s err ] && grep -q -e '--resume run' out
    check "SIGINT finishes the step, saves, says how to go on and exits 130" $? "status $status: $(tail -n 1 out)"
    cp -r run stopped.run
    for _ in 1 2 3 4 5; do
        stop_run TERM '^80,' run/log.csv --resume run
        [ "$status" -ne 0 ] && break
        rm -rf run
        cp -r stopped.run run
    done
    second=$(steps_done)
    [ "$status" -eq 143 ] && [ "$second" -gt "$first" ] && [ "$second" -lt 128 ] && grep -q -e '--resume run' out
    check "SIGTERM the same, with 143" $? "status $status: $(tail -n 1 out)"
    run --resume run
    cd ..
    same_run whole.$rows/run int.$rows/run
    check "stopped at steps $first and $second and resumed: the same run bit for bit" $? "differs: $differs"
done

stopped kill KILL 137 '^epoch 2/4  top-1' out "--log-every 5"
check "kill -9 after an epoch" $? "status $status"
run --resume run/state.safetensors
cd ..
same_run whole.5/run kill/run
check "killed and resumed: the same run bit for bit" $? "differs: $differs"

# Two epochs of one batch, each with a long evaluation at its end, and the signal in the first evaluation.
examined="$model --train-limit 32 --test-limit $([ "$slow" = 1 ] && echo 2000 || echo 15000) --batch-size 32
          --micro-batch 8 --epochs 2 --warmup-epochs 0 --log-every 1 --run-dir run"
mkdir examined examined.stopped
(cd examined && "$vit" $examined >out 2>err)
cd examined.stopped || exit 1
stops_run 143 run TERM '^epoch 1/2  batch 1/1' out $examined && [ "$(wc -l <run/log.csv)" -eq 1 ]
check "a signal while evaluating stops there" $? "status $status: $(tail -n 1 out)"
run --resume run
cd ..
same_run examined/run examined.stopped/run
check "stopped while evaluating and resumed: the same run bit for bit" $? "differs: $differs"

# Random features and codes, sampled anew in every step: all of them are in the state.
rich="$rich --attn linear --feature-map performer --relative sincspe --log-every 5"
mkdir whole.random
(cd whole.random && "$vit" $rich >out 2>err)
stopped int.random INT 130 '^40,' run/log.csv ""
run --resume run
cd ..
same_run whole.random/run int.random/run
check "random features and codes, stopped and resumed: the same run bit for bit" $? "differs: $differs"

# == Disk full, numbers lost =========================================================================================

# There may also be no space for the run's page, but then only the page is missing.
forget_page() { sed -i '/; the run continues without its page$/d' err; }

mkdir plain && cp -R whole.5/run plain/run
(cd plain && sed 's/^epochs = .*/epochs = 2/' run/config.ini >two.ini && rm -rf run &&
    "$vit" --config two.ini >out 2>err)
cp -R plain full
cd full || exit 1
room=$(($(wc -c <run/last.safetensors) / 512 + 8)) # for the weights, but not for the state
(ulimit -f $room && "$vit" --resume run --epochs 4 >out 2>err)
status=$?
forget_page
complains 1 'run/state.safetensors|File too large|still whole'
check "a file that may not grow stops the run with one line" $? "status $status: $(head -n 1 err)"
[ "$(find run -name '*tmp*' | wc -l)" -eq 0 ]
check "no temporary file stays behind" $? "$(ls run | tr '\n' ' ')"
run --resume run --epochs 4
mv run continued
cp -R ../plain/run run
run --resume run --epochs 4
cd ..
same_run full/run full/continued
check "and with room it goes on as if nothing had been" $? "differs: $differs"

mkdir disk
run $tiny --epochs 1 --run-dir once
state=$(($(wc -c <once/state.safetensors) / 1024)) all=$(($(cat once/* | wc -c) / 1024))
# Space for the files of an epoch, but not for the state that replaces them.
if [ "$(id -u)" -eq 0 ] && mount -t tmpfs -o size=$((all + 24 + state / 2))k none disk 2>/dev/null; then
    run $tiny --epochs 4 --run-dir disk/run
    forget_page
    complains 1 'disk/run/|No space left on device'
    check "a full disk stops the run with one line" $? "status $status: $(head -n 1 err)"
    mount -o remount,size=4m none disk
    run --resume disk/run
    mv out resumed
    run $tiny --epochs 4 --run-dir roomy
    grep -q '^resumed at epoch [23]' resumed && same_run roomy disk/run
    check "and with room it goes on as if nothing had been" $? "$(grep '^resumed' resumed), differs: $differs"
    umount disk
else
    skip "a full disk stops the run with one line" "no small disk can be mounted"
fi

# One epoch, which is saved, and then learning rates at which the numbers overflow: on some processors within an epoch.
run $tiny --epochs 1 --run-dir nan
refuses "a loss that is lost stops the run" 1 'step|not a number|lower lr' --resume nan --epochs 50 --lr 100 --lr-min 100 \
    --eps 0 --weight-decay 10
[ -s nan/state.safetensors ] && grep -q 'good state is in nan' err
check "and says where the last good state is" $? "epoch $(place nan/state.safetensors | cut -d ' ' -f 2)"
run --eval --init nan/last.safetensors
[ "$status" -eq 0 ]
check "which still evaluates" $? "$(tail -n 1 out)"
epochs=$(($(place nan/state.safetensors | cut -d ' ' -f 2) + 1))
run --resume nan --epochs $epochs --lr 1e-30 --lr-min 0 --eps 1e-8 --weight-decay 0
[ "$status" -eq 0 ]
check "and goes on" $? "status $status: $(head -n 1 err) $(last_row nan)"
# With epsilon 0 a block that every sample drops turns into 0/0 in an update whose loss and gradient are finite.
refuses "weights that are lost stop the run" 1 'step 1|blocks.1.|not a number|nothing has been saved' \
    $tiny --train-limit 16 --epochs 2 --eps 0 --drop-path 0.99 --run-dir zero
[ "$(find zero -name '*.safetensors' | wc -l)" -eq 0 ]
check "before they are saved" $? "$(ls zero | tr '\n' ' ')"

# == The same numbers again ==========================================================================================

seeded="$tiny --epochs 2 --drop-path 0.3 --log-every 1 --lr 1e-3"
run $seeded --seed 1 --run-dir seed.1
run $seeded --seed 1 --run-dir seed.1.again
same_run seed.1 seed.1.again
check "the same seed gives the same run" $? "differs: $differs"
run $seeded --seed 2 --run-dir seed.2
curve seed.1 >curve.1 && curve seed.2 >curve.2 && ! cmp -s curve.1 curve.2
check "another seed gives another" $? "$(last_row seed.1 | cut -d , -f 3), $(last_row seed.2 | cut -d , -f 3)"
evidence=$(curves_agree seed.1 seed.2 1e-4)
[ $? -eq 1 ]
check "curves of two seeds do not count as the same" $? "$evidence"

for attn in softmax linear ripple convit; do
    OMP_NUM_THREADS=1 "$vit" $seeded --attn $attn --run-dir one.$attn >out 2>err
    OMP_NUM_THREADS=2 "$vit" $seeded --attn $attn --run-dir two.$attn >out 2>err
    evidence=$(curves_agree one.$attn two.$attn 1e-4)
    check "one thread and two agree: $attn" $? "$evidence"
    run $seeded --attn $attn --micro-batch 5 --run-dir micro.$attn
    evidence=$(curves_agree one.$attn micro.$attn 1e-4)
    check "batches of 16 at once and of 5 at a time agree, with drop path: $attn" $? "$evidence"
done

# == Random features and codes =======================================================================================

# A black picture of the training images' size.
labels='"labels":{"dtype":"I64","shape":[1],"data_offsets":[12288,12296]}'
safetensors black.safetensors '{"images":{"dtype":"F32","shape":[1,3,32,32],"data_offsets":[0,12288]},'"$labels}" 12296

# outputs NAME FLAGS: the outputs and every gradient of a model, with all digits.
outputs() {
    name=$1
    shift
    run "$@" --parity black.safetensors --out "$name.out"
    [ "$status" -eq 0 ] && tensors "$name.out" >"$name.numbers" && [ -s "$name.numbers" ]
}

drawn="$seeded --attn linear --ema-decay 0.5"
for what in '--feature-map rfa' '--feature-map performer' '--feature-map mlp-random-w1' '--relative sincspe' \
    '--relative convspe' '--relative permute'; do
    rm -rf drawn drawn.again drawn.micro
    run $drawn $what --seed 1 --run-dir drawn
    run $drawn $what --seed 1 --run-dir drawn.again
    same_run drawn drawn.again
    check "the same seed gives the same run: $what" $? "differs: $differs"
    run $drawn $what --seed 1 --micro-batch 5 --run-dir drawn.micro
    evidence=$(curves_agree drawn drawn.micro 1e-4)
    check "micro-batches share a step's draw: $what" $? "$evidence"
    outputs one --init drawn/last.safetensors --seed 1 && outputs two --init drawn/last.safetensors --seed 99 &&
        cmp -s one.numbers two.numbers
    check "weights bring the draw that they were trained with: $what" $? "$(head -n 1 err)"
    run --eval --init drawn/last.safetensors --seed 99
    [ "$(tail -n 1 out | awk '{ printf "%.3f,%.3f", $2, $4 }')" = "$(last_row drawn | cut -d , -f 7,8)" ]
    check "and evaluate with it: $what" $? "$(tail -n 1 out)"
done

# == Hierarchies ====================================================================================================
stages="--dim 8,16 --depth 1,2 --heads 2,4 --patch-size 4 --patch-overlap --mlp-conv --pos-embed conv --drop-path 0.2"
stages="$stages --train-limit 48 --test-limit 16 --batch-size 16 --warmup-epochs 0 --log-every 1"
for what in '--attn lisa --lisa-patterns 2' '--attn softmax --conv-stages 1 --recompute --init-scale depth'; do
    rm -rf staged staged.micro
    run $stages $what --epochs 2 --run-dir staged
    [ "$status" -eq 0 ] && [ ! -s err ]
    check "a hierarchy trains: $what" $? "$(last_row staged) $(head -n 1 err)"
    run $stages $what --epochs 2 --micro-batch 5 --run-dir staged.micro
    evidence=$(curves_agree staged staged.micro 1e-4)
    check "and in micro-batches: $what" $? "$evidence"
done
run $stages --attn softmax --conv-stages 1 --init-scale depth --epochs 2 --run-dir staged.whole
same_run staged staged.whole
check "recompute changes no bit of a run" $? "differs: $differs"
swin="--dim 8,16 --depth 2 --heads 2,4 --patch-size 4 --attn swin --patch-norm --patch-merging --stage-norm false --norm-eps 1e-5"
swin="$swin --pos-embed none --drop-path 0.2 --train-limit 48 --test-limit 16 --batch-size 16 --warmup-epochs 0 --log-every 1"
run $swin --window 3,2 --epochs 2 --run-dir swin.whole
[ "$status" -eq 0 ] && [ ! -s err ]
check "Swin trains" $? "$(last_row swin.whole) $(head -n 1 err)"
run $swin --window 3,2 --epochs 2 --recompute --run-dir swin.again
same_run swin.whole swin.again
check "recompute changes no bit of its run" $? "differs: $differs"
run $swin --window 3,2 --epochs 2 --micro-batch 5 --run-dir swin.micro
evidence=$(curves_agree swin.whole swin.micro 1e-4)
check "and in micro-batches" $? "$evidence"
refuses "weights of another window" 1 'swin.whole/last.safetensors|bias_table|[25,2]|[49,2]|window|here 4 in stage 0' \
    $swin --window 4,2 --init swin.whole/last.safetensors --eval
table=attn.relative_position_bias_table
run $swin --window 6,2 --img-size 64 --init swin.whole/last.safetensors --eval
[ "$status" -eq 0 ] && grep -q "resampled bicubically: layers.0.blocks.0.$table from 5x5 to 11x11 and 1 more" out
check "a window that grows with the image" $? "$(cat out err)"
run $swin --window 3,9 --img-size 64 --init swin.whole/last.safetensors --eval
[ "$status" -eq 0 ] && grep -q "resampled bicubically: layers.1.blocks.0.$table from 3x3 to 15x15 and 1 more" out
check "a window larger than its 8 x 8 tokens has their sides" $? "$(cat out err)"
for what in 'depth 2,3|2 blocks in stage 1|has 3|depth (here 3 in stage 1)' \
    'dim 8,24|layers.1.blocks.0.norm1.weight|[16]|[24]|dim (here 24 in stage 1)' \
    'mlp-ratio 4,2.5|layers.1.blocks.0.mlp.fc1.weight|[64,16]|[40,16]|mlp_ratio (here 2.5 in stage 1)' \
    'dim 8,16,32 --window 3,2,1 --heads 2,4,4|no blocks in stage 2|dim'; do
    refuses "weights of a neighbour: ${what%%|*}" 1 "swin.whole/last.safetensors|${what#*|}" $swin --window 3,2 \
        --init swin.whole/last.safetensors --eval --${what%%|*}
done
refuses "Swin's weights for focused attention" 1 'swin.whole/last.safetensors|layers.0.blocks.0.attn.positional_encoding' \
    $swin --attn focused,swin --window 2 --init swin.whole/last.safetensors --eval
pvt="--dim 8,16 --depth 1,2 --heads 2,4 --patch-size 4 --attn reduced --reduction 2,1 --patch-norm --stage-norm false"
pvt="$pvt --pos-embed stages --pool cls --dropout 0.2 --train-limit 48 --test-limit 16 --batch-size 16 --log-every 1"
pvt="$pvt --warmup-epochs 0 --epochs 20"
run $pvt --run-dir pvt.whole
[ "$status" -eq 0 ] && [ ! -s err ]
check "PVT trains, with dropout in every stage" $? "$(last_row pvt.whole) $(head -n 1 err)"
run $pvt --recompute --run-dir pvt.again
same_run pvt.whole pvt.again
check "recompute changes no bit of its run" $? "differs: $differs"
stops_run 130 pvt.stopped INT '^8,' pvt.stopped/log.csv $pvt --run-dir pvt.stopped
check "and can be stopped" $? "status $status"
run --resume pvt.stopped
same_run pvt.whole pvt.stopped
check "and resumed with the same bits" $? "differs: $differs"
cswin="--dim 8,16 --depth 2,1 --heads 2,4 --patch-size 4 --patch-overlap --patch-pad 2 --stage-norm false --norm-eps 1e-5"
cswin="$cswin --pos-embed none --drop-path 0.2 --train-limit 48 --test-limit 16 --batch-size 16 --warmup-epochs 0 --log-every 1"
for what in '--attn cswin --stripe 2,7' '--attn cswin-focused,cswin --stripe 4,7'; do
    rm -rf cswin.whole cswin.again cswin.micro
    run $cswin $what --epochs 2 --run-dir cswin.whole
    [ "$status" -eq 0 ] && [ ! -s err ]
    check "CSwin trains: $what" $? "$(last_row cswin.whole) $(head -n 1 err)"
    run $cswin $what --epochs 2 --recompute --run-dir cswin.again
    same_run cswin.whole cswin.again
    check "recompute changes no bit of its run: $what" $? "differs: $differs"
    run $cswin $what --epochs 2 --micro-batch 5 --run-dir cswin.micro
    case $what in *focused*) allowed=1e-3 ;; *) allowed=1e-4 ;; esac # features near zero magnify rounding
    evidence=$(curves_agree cswin.whole cswin.micro $allowed)
    check "and in micro-batches: $what" $? "$evidence"
done
succeeds "the encodings of stripes are resampled" $cswin --attn cswin-focused,cswin --stripe 4,7 --img-size 64 --predict test:0 \
    --init cswin.whole/last.safetensors
grep -q 'bicubically: stages.0.blocks.0.attn.attns.0.positional_encoding from 8x4 to 16x4 and 3 more' out
check "each on its own stripe" $? "$(grep resampled out)"
succeeds "no shape depends on the stripes of CSwin" $cswin --attn cswin --stripe 2,7 --epochs 1 --run-dir cswin.plain
succeeds "so that weights load with others" --stripe 4,7 --predict test:0 --init cswin.plain/last.safetensors
grep -qx 'cswin.plain/last.safetensors: weights trained with stripe 2,7 are used with stripe 4,7, as the settings say' out
check "and a line says so" $? "$(grep stripe out)"
succeeds "and with their own" --predict test:0 --init cswin.plain/last.safetensors
! grep -q stripe out
check "without a line" $? "$(grep stripe out)"
restate cswin.plain/last.safetensors cswin.foreign vit.c.config x.config
succeeds "where a file has no settings" $cswin --attn cswin --stripe 4,7 --predict test:0 --init cswin.foreign --data shapes
grep -q '^cswin.foreign: it has no settings of train_vit; assumed: attn cswin, stripe 4,7, heads 2,' out
check "the line of what is assumed names them" $? "$(grep cswin.foreign out)"
refuses "CSwin's weights for a deeper one" 1 'cswin.whole/last.safetensors|2 blocks in stage 0|has 3|depth (here 3 in stage 0)' \
    $cswin --attn cswin-focused,cswin --stripe 4,7 --depth 3,1 --init cswin.whole/last.safetensors --eval
refuses "weights of stripes for one without them" 1 'cswin.whole/last.safetensors|attns.0.get_v.weight|[4,1,3,3]|[8,1,3,3]|stripe|here 0 in stage 0' \
    $cswin --attn cswin-focused,cswin --stripe 0,7 --init cswin.whole/last.safetensors --eval
refuses "focused weights for softmax attention" 1 'cswin.whole/last.safetensors|stages.0.blocks.0.attn.attns.0' \
    $cswin --attn cswin --stripe 4,7 --init cswin.whole/last.safetensors --eval
refuses "pictures of a hierarchy" 2 'attention|2 stages' --init staged/last.safetensors --predict test:0 --attention x

# == The average, learning ===========================================================================================

averaged="$tiny --epochs 3 --lr 1e-3 --log-every 1"
run $averaged --run-dir raw
run $averaged --ema-decay 1e-6 --run-dir follows
run $averaged --ema-decay 0.9999999 --run-dir stays
curve raw >curve.1
curve follows >curve.2
cmp -s curve.1 curve.2
check "an average that follows at once evaluates like the weights" $? "$(last_row raw), $(last_row follows)"
[ "$(cut -d , -f 3 stays/log.csv | uniq | wc -l)" -gt 5 ] &&
    [ "$(curve stays | cut -d , -f 6,7 | grep '[0-9],[0-9]' | sort -u | wc -l)" -eq 1 ]
check "an average that hardly moves keeps the first accuracy while the loss moves" $? "$(last_row stays)"
run --resume stays --epochs 4
[ "$status" -eq 0 ]
check "and goes on" $? "$(head -n 1 err)"

# Figure 3 of the ripple paper: initial sticks give five rings equal weights; fixed weights halve.
slow_rate="$tiny --epochs 1 --lr 1e-9 --lr-min 1e-9 --lr-warmup 1e-9"
run $slow_rate --attn ripple-fixed --run-dir halved
[ "$(cells halved jsd)" = 0.000000 ]
check "fixed weights do not diverge from themselves" $? "$(last_row halved)"
run $slow_rate --attn ripple --r-max 4 --run-dir sticks
cells sticks jsd | awk '{
    for (r = 0; r < 5; r++) { p = 0.2; q = r < 4 ? 2 ^ -(r + 1) : 1 / 16; m = (p + q) / 2
                              jsd += p * log(p / m) / 2 + q * log(q / m) / 2 }
    printf "%.6f", jsd; exit !($1 > jsd - 2e-3 && $1 < jsd + 2e-3) }' >expected
check "fresh sticks diverge as uniform weights do" $? "$(cells sticks jsd), uniform $(cat expected)"
[ "$(head -n 1 halved/log.csv | cut -d , -f 13-)" = jsd ]
check "weights without sticks have no column of tau" $? "$(head -n 1 halved/log.csv)"
run $slow_rate --attn linear --run-dir placeless
head -n 1 placeless/log.csv | grep -qv -e jsd -e tau
check "an operator without spatial weights has no column of them" $? "$(head -n 1 placeless/log.csv)"

# Four initial sticks leave 0.8, 0.6, 0.4 and 0.2 of the total.
for row in 0.9,1.000000,1.000000 0.5,1.000000,0.000000 0.1,0.000000,0.000000; do
    run $slow_rate --attn ripple --r-max 4 --tau "${row%%,*}" --run-dir "tau.$row"
    [ "$(cells "tau.$row" tau_ended,tau_equal)" = "${row#*,}" ]
    check "how often tau ${row%%,*} ends stick breaking" $? "$(last_row "tau.$row")"
done

if [ "$slow" = 1 ]; then
    skip "ripple attention overfits 64 images" "takes long"
else
    run --attn ripple --dim 64 --depth 2 --heads 2 --patch-size 8 --ripple-layers 2 --train-limit 64 --test-limit 32 \
        --batch-size 16 --epochs 70 --lr 3e-3 --lr-schedule step --warmup-epochs 2 --beta2 0.95 --clip-grad 1 \
        --label-smoothing 0 --crop-padding 0 --flip false --eval-every 70 --run-dir learned
    last_row learned | awk -F , '{ low = $3 > 0 && $3 < 0.23 } END { exit !low }' && [ "$status" -eq 0 ]
    check "ripple attention overfits 64 images: loss below 0.23, a tenth of ln 10" $? "$(last_row learned)"
fi

echo "1..$count"
[ $failures -eq 0 ]
