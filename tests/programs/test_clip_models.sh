#!/bin/sh
# Models of clips from the command line: the counts of the LiSA paper's Tables 8 and 14, refused settings, and weights
# of image models as initial weights.  Prints TAP.
#
#   BUILD=build/cpu sh tests/programs/test_clip_models.sh

# shellcheck disable=SC2015,SC2046,SC2086,SC2154 # settings are lists of words
. "$(dirname "$0")/../tap.sh"

# == Counts ==========================================================================================================

# Every layer with its bias, in parameters and in multiply-adds of linear layers, products and transforms.
while read -r config params macs; do
    "$vit" --config "$root/configs/video/$config.ini" --describe --batch-size 1 >out 2>err
    [ "$(sed -n 's/^params: //p' out)" = "$params" ] && grep -qE "^macs(_without_transforms)?: $macs\$" out
    check "$config has $params parameters and $macs multiply-adds" $? "$(grep -E '^(params|macs)' out | tr '\n' ' ')$(cat err)"
done <<'TABLE'
lisanet-i-softmax 5814894 7340982912
lisanet-i-softmax-rpe 5876130 7340982912
lisanet-i-dwconv7 4821870 3733729920
lisanet-i-gf 6545262 3507057792
lisanet-i-lambda 6346158 26849411712
lisanet-i-rsa 23450094 72571388544
lisanet-i 8381550 4508648064
hylisanet-s 26368656 41597509632
hylisanet-b 54006256 105854441472
TABLE

# The configs name folders that do not exist here.
run --config "$root/configs/video/lisanet-i-softmax.ini" --dim 16 --depth 1 --heads 2 --img-size 32 --bench --bench-seconds 0.1 \
    --batch-size 2
[ "$status" -eq 0 ] && grep -q '"train_images_per_s": [1-9]' out
check "--bench needs no data where the number of classes is known" $? "$(head -n 1 err)"
refuses "and does where it is not" 1 'datasets/ssv2|no such folder' --config "$root/configs/video/lisanet-i-softmax.ini" \
    --num-classes 0 --bench
refuses "as training does" 1 'datasets/ssv2|no such folder' --config "$root/configs/video/lisanet-i-softmax.ini"

# == Refusals ========================================================================================================

clip="$model --frames 8 --tubelet 3 --describe"
refuses "an operator without an axis of time" 2 '--frames|--attn focused-reduced|frames 1' --attn focused-reduced $clip
refuses "a torus of rows and columns" 2 '--lisa-fft|2d|--frames 8' --attn lisa --lisa-fft 2d $clip
refuses "rotations by row and column" 2 '--relative|rope-2d|rope-3d' --attn linear --relative rope-2d $clip
refuses "an algorithm of rings without time" 2 '--ripple-algo|window|sat' --attn ripple --ripple-algo window $clip
refuses "an even tubelet" 2 '--tubelet|2' $clip --tubelet 2
refuses "an even kernel" 2 '--time-kernel|4' $clip --time-kernel 4
refuses "tubelets longer than the clip" 2 '--tubelet|3|--frames 2' $clip --frames 2
for operator in softmax linear efficient hydra castling focused lisa sa9 sa9-heads sa10 sa11 gf dwconv7 lambda rsa ripple \
    ripple-log ripple-explicit-softmax sparse-strided sparse-fixed relu-linear nystrom soft swin cswin cswin-focused reduced convattn \
    inception convit; do
    run --attn $operator $clip && [ "$status" -eq 0 ]
    check "$operator takes clips" $? "$(head -n 1 err)"
done

# == Weights of images ===============================================================================================

if [ -n "$python" ]; then
    "$python" - "$root/tests/reference" <<'EOP'
import sys
sys.path.insert(0, sys.argv[1])
import numpy, safetensors_io
random = numpy.random.RandomState(3)
image = random.standard_normal((2, 3, 24, 24)).astype("float32")
labels = numpy.array([1, 0])
safetensors_io.write("image.batch", {"images": image, "labels": labels})
safetensors_io.write("still.batch", {"images": numpy.repeat(image[:, None], 5, 1), "labels": labels})
moving = random.standard_normal((2, 5, 3, 24, 24)).astype("float32")
safetensors_io.write("moving.batch", {"images": moving, "labels": labels})
safetensors_io.write("conv3d.batch", {"clips": numpy.ascontiguousarray(moving.transpose(0, 2, 1, 3, 4)), "labels": labels})
EOP
    small="$model --attn gf --img-size 24 --num-classes 10 --mlp-conv true"
    weights=$work/gf/best.safetensors
    run $tiny --attn gf --img-size 24 --num-classes 10 --mlp-conv true --epochs 1 --run-dir gf
    [ -f "$weights" ]
    check "an image model is trained" $? "$(head -n 1 err)"
    run $small --init "$weights" --parity image.batch --out image.out
    refuses "image weights without a rule" 1 'patch_embed.proj.weight|of an image model|inflate mean' $small --pos-embed none \
        --frames 5 --tubelet 3 --init "$weights" --parity still.batch --out clip.out
    run $small --frames 5 --tubelet 3 --inflate centre --init "$weights" --parity still.batch --out clip.out
    [ "$status" -eq 0 ] && grep -q 'weights for images, extended in time: ' out
    check "image weights are extended by --inflate" $? "$(grep extended out)$(cat err)"
    "$python" - "$root/tests/reference" <<'EOP'
import sys
sys.path.insert(0, sys.argv[1])
import numpy, safetensors_io
want, got = (safetensors_io.read(name)[0]["logits"] for name in ("image.out", "clip.out"))
worst = abs(want - got).max() / abs(want).max()
print(f"# worst {worst:.1e}")
sys.exit(not worst < 2e-5)
EOP
    check "a clip without motion has its image's logits" $?
    for batch in moving conv3d; do
        run $small --frames 5 --tubelet 3 --inflate mean --init "$weights" --parity $batch.batch --out $batch.out
    done
    cmp -s moving.out conv3d.out
    check "clips in the order of Conv3d give the same bits" $? "$(cat err)"
else
    skip "weights of images" "no Python with numpy"
fi

# == Predictions =====================================================================================================

# Each frame of a clip that --attention writes has, when shown alone, the probability that --predict prints.
moving="--data moving-shapes --img-size 64 $model --frames 5 --train-limit 32 --test-limit 32 --mean 0,0,0 --std 1,1,1"
run $moving --batch-size 16 --warmup-epochs 0 --epochs 1 --lr 0.02 --run-dir moving
named="--init moving/last.safetensors --predict"
refuses "a picture for a model of clips" 1 'x.png|a picture|clips of 5 frames|video' $named x.png
mkdir -p clips/nothing clips/frames
refuses "a folder without clips" 1 'clips/nothing|no clips' $named clips/nothing
if [ -n "$python" ]; then
    run $moving $named test:3 --top-frames 9 --attention seen.safetensors --json seen.json
    [ "$status" -eq 0 ] && grep -q '^test:3: ' out && grep -q '^  frames that alone look most like .*: ' out
    check "--predict names a clip and its frames" $? "$(cat out err)"
    "$python" - "$root/tests/reference" <<'EOP'
import sys
sys.path.insert(0, sys.argv[1])
import numpy, safetensors_io
tensors, metadata = safetensors_io.read("seen.safetensors")
image = tensors["image"]
assert metadata["grid"] == "5x8x8" and image.shape == (5, 64, 64, 3), (metadata, image.shape)
assert list(tensors["queries"]) == [128 + 64 * 0 + y * 8 + x for y in (2, 6) for x in (2, 6)]
assert numpy.allclose(tensors["weights"].sum(-1), 1, atol=1e-4) and tensors["norms"].shape == (3, 320)
still = numpy.repeat(image.transpose(0, 3, 1, 2)[:, None], 5, 1).astype("float32")
safetensors_io.write("alone.batch", {"images": still, "labels": numpy.arange(5)})
EOP
    check "--attention writes a clip" $?
    run $moving --init moving/last.safetensors --parity alone.batch --out alone.out
    "$python" - "$root/tests/reference" <<'EOP'
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy, safetensors_io
logits = safetensors_io.read("alone.out")[0]["logits"].astype("float64")
clip = json.load(open("seen.json"))[0]
shares = numpy.exp(logits) / numpy.exp(logits).sum(1, keepdims=True)
want = shares[:, clip["predictions"][0]["id"]]
got = {entry["frame"]: entry["probability"] for entry in clip["frames"]}
order = [entry["probability"] for entry in clip["frames"]]
worst = max(abs(got[t] / want[t] - 1) for t in range(5))
print(f"# worst {worst:.1e}, probabilities from {min(order):.4f} to {max(order):.4f}")
assert len(got) == 5 and order == sorted(order, reverse=True) and max(order) > 1.0001 * min(order)
sys.exit(not worst < 1e-5)
EOP
    check "a frame's score is that of a clip which shows it alone" $?
else
    skip "predictions of clips" "no Python with numpy"
fi

# == Several samples of a clip =======================================================================================

twice="--data moving-shapes --img-size 64 $model --frames 5 --train-limit 96 --test-limit 8 --batch-size 16 --micro-batch 5
       --warmup-epochs 0 --epochs 2 --samples-per-clip 2 --mixup 0.8 --crop-padding 4 --log-every 1 --run-dir run"
refuses "samples of clips that are repeated" 2 '--samples-per-clip|2|--repeated-aug true' $twice --repeated-aug
refuses "clip samples with a data set of images" 2 '--samples-per-clip|2|shapes|has images|repeated_aug' $tiny --samples-per-clip 2 \
    --epochs 1 --run-dir none
mkdir whole stopped
(cd whole && "$vit" $twice >out 2>err && grep -q '2 epochs of 12 batches of 16 clips, 5 at a time' out)
check "an epoch has two samples of each clip" $? "$(grep epochs whole/out)$(cat whole/err)"
cd stopped || exit 1
stops_run 130 run INT '^5,' run/log.csv $twice
check "and is stopped inside" $? "status $status"
run --resume run
cd ..
same_run whole/run stopped/run
check "stopped between the samples of clips and resumed: the same run bit for bit" $? "differs: $differs"

# == Micro-batches ===================================================================================================

# The number of tokens decides, not that of frames: a micro-batch is as large as for images with the same number of
# tokens.
at_once() { sed -n 's/^memory for \([0-9]*\) .*/\1/p' out; }
run $model --img-size 128 --batch-size 512 --describe
images=$(at_once)
run $model --img-size 64 --batch-size 512 --frames 7 --tubelet 3 --describe
clips=$(at_once)
run $model --img-size 64 --batch-size 512 --frames 4 --describe
[ "$clips" -eq "$(at_once)" ] && [ "$clips" -eq "$images" ]
check "of a clip's frames as many tokens are taken at a time as of images" $? "$images images, $clips clips"

# == Video files =====================================================================================================

# The program that tests videos writes one, or says that this build has no FFmpeg.
"$build/tests/test_video" clip.mp4 >made 2>&1
status=$?
if [ -e "$build/tests/test_video" ] && ! grep -q 'SKIP no FFmpeg' made; then
    [ "$status" -eq 0 ] && [ -s clip.mp4 ]
    check "test_video writes a video" $? "status $status: $(tail -n 1 made)"
    for folder in train/a train/b val/a val/b; do
        mkdir -p videos/$folder
        cp clip.mp4 videos/$folder
    done
    videos="$model --data videos --img-size 24 --frames 5 --tubelet 3 --max-damaged 0.9"
    ! ldd "$vit" | grep -qE 'libav(format|codec|util)'
    check "the program starts without FFmpeg's libraries" $?
    succeeds "videos train" $videos --batch-size 2 --warmup-epochs 0 --epochs 1 --run-dir seen
    cp clip.mp4 clips
    run --init seen/last.safetensors --predict clips --top-frames 2 --json named.json
    [ "$status" -eq 0 ] && grep -q '^clips/clip.mp4: ' out &&
        grep -qE 'look most like .*: [0-9]+ \([0-9.]+ s\) .*, [0-9]+ \(' out
    check "--predict of a folder of videos" $? "$(cat out err)"
    grep -qE '"file": "clips/clip.mp4".*"frames": \[\{"frame": [0-9]+, "time": [0-9.]+, "probability": ' named.json
    check "--json has the clip's frames" $? "$(cat named.json)"
    mv videos away
    cp out before
    run --init seen/last.safetensors --predict clips --top-frames 2 --json named.json
    [ "$status" -eq 0 ] && cmp -s out before
    check "without the videos that it was trained on, too" $? "$(head -n 1 out) $(head -n 1 err)"
    mv away videos
    succeeds "--predict without frames" --init seen/last.safetensors --predict clip.mp4 --top-frames 0
    ! grep -q themselves out
    check "names none" $?
    run $tiny --data shapes --img-size 24 --epochs 1 --run-dir images
    refuses "a video for a model of images" 1 'clip.mp4|a video|takes images' --init images/last.safetensors \
        --predict clip.mp4
    mkdir broken
    : >"broken/$(ldd "$build/tests/test_video" | sed -n 's/.*\(libavutil\.so\.[0-9]*\) .*/\1/p')"
    path=${LD_LIBRARY_PATH-}
    export LD_LIBRARY_PATH="$work/broken${path:+:$path}"
    refuses "FFmpeg's libraries that are not there" 1 "clip.mp4|FFmpeg's libraries|install libavformat|libswscale" \
        $videos --init seen/last.safetensors --eval
    export LD_LIBRARY_PATH="$path"
else
    skip "video files" "no FFmpeg in this build, or no $build/tests/test_video"
fi

echo "1..$count"
[ "$failures" -eq 0 ]
