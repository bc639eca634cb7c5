#!/bin/sh
# Models of clips from the command line: the counts of the LiSA paper's Tables 8 and 14, what is refused, and the weights
# of image models as theirs.  Prints TAP.
#
#   BUILD=build/cpu sh tests/test_clip_models.sh

# shellcheck disable=SC2015,SC2046,SC2086,SC2154 # settings are lists of words
. "$(dirname "$0")/tap.sh"

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

# == Refusals ========================================================================================================

clip="$model --frames 8 --tubelet 3 --describe"
refuses "an operator without an axis of time" 2 '--frames|attn convit|frames 1' --attn convit $clip
refuses "a torus of rows and columns" 2 '--lisa-fft|2d|attn lisa has 4' --attn lisa --lisa-fft 2d $clip
refuses "rotations by row and column" 2 '--relative|rope-2d' --attn linear --relative rope-2d $clip
refuses "an algorithm of rings without time" 2 '--ripple-algo|sat|naive' --attn ripple --ripple-algo sat $clip
refuses "an even tubelet" 2 '--tubelet|2' $clip --tubelet 2
refuses "an even kernel" 2 '--time-kernel|4' $clip --time-kernel 4
refuses "tubelets longer than the clip" 2 '--tubelet|3|frames is 2' $clip --frames 2
for operator in softmax linear efficient hydra castling focused lisa sa9 sa9-heads sa10 sa11 gf dwconv7 lambda rsa ripple \
    ripple-log; do
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
    [ "$status" -eq 0 ] && grep -q 'of images, extended in time: ' out
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
    check "a clip that stands still has its image's logits" $?
else
    skip "weights of images" "no Python with numpy"
fi

# == Video files =====================================================================================================

# The program that tests videos writes one, where this build has FFmpeg.
"$build/tests/test_video" clip.mp4 >/dev/null 2>&1
if [ -s clip.mp4 ]; then
    for folder in train/a train/b val/a val/b; do
        mkdir -p videos/$folder
        cp clip.mp4 videos/$folder
    done
    videos="$model --data videos --img-size 24 --frames 5 --tubelet 3 --max-damaged 0.9"
    ! ldd "$vit" | grep -qE 'libav(format|codec|util)'
    check "the program starts without FFmpeg's libraries" $?
    succeeds "videos train" $videos --batch-size 2 --warmup-epochs 0 --epochs 1 --run-dir seen
    mkdir broken
    : >"broken/$(ldd "$build/tests/test_video" | sed -n 's/.*\(libswscale\.so\.[0-9]*\) .*/\1/p')"
    path=${LD_LIBRARY_PATH-}
    export LD_LIBRARY_PATH="$work/broken${path:+:$path}"
    refuses "FFmpeg's libraries that are not there" 1 "clip.mp4|FFmpeg's libraries|install libavformat|libswscale" \
        $videos --init seen/last.safetensors --eval
    export LD_LIBRARY_PATH="$path"
else
    skip "video files" "no FFmpeg in this build"
fi

echo "1..$count"
[ "$failures" -eq 0 ]
