#!/bin/sh
# Pages of runs in a browser: tests/report/check_page.py; first, whether it recognises bad pages.
#
#   BUILD=build/cpu sh tests/programs/test_pages.sh

# shellcheck disable=SC1091,SC2015,SC2034,SC2086,SC2154 # settings are lists of words; tap.sh reads vit
. "$(dirname "$0")/../tap.sh"

plain= # a Python, with any packages
for candidate in ${PYTHON:-python3 /usr/bin/python3}; do
    [ -n "$plain" ] || ! "$candidate" -c 'import sys' 2>/dev/null || plain=$candidate
done
if [ -z "$plain" ]; then
    skip "pages" "no python3"
    echo "1..$count"
    exit
fi

# page NAME BODY: a page whose colours follow the browser's scheme.
page() {
    cat >"$1.html" <<HTML
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8"/><title>$1</title>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<style>:root { color-scheme: light dark; --ink: #222; --ground: #fff }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --ground: #111 } }
body { color: var(--ink); background: var(--ground); margin: 16px }
svg { width: 100%; max-width: 640px } svg text { fill: var(--ink); font-size: 14px }
.frame { overflow-x: auto }</style></head><body>$2</body></html>
HTML
}

# A page without a defect.
sound='<h1>A run</h1><p>Accuracy 61.24 %, loss 0.93, and as many words as a page has at least.</p>
<svg viewBox="0 0 640 300"><title>loss</title><text x="10" y="20">loss</text><text x="10" y="40">accuracy</text>
<path d="M10 200L600 50" stroke="currentColor"/>
<text transform="translate(100,200) rotate(-45)">airplane</text>
<text transform="translate(125,200) rotate(-45)">automobile</text></svg>
<div class="frame"><table><tr><th>column</th><th style="min-width: 900px">another</th></tr></table></div>
<button onclick="this.textContent = &quot;copied&quot;">copy</button>
<details><summary>more</summary><p>folded</p></details>'

# All pages are checked in one call, because a browser takes a second to start.  bad NAME WORDS BODY: a page with one
# reported line that has these words.
names=
bad() {
    page "bad$((number += 1))" "$3"
    names="$names bad$number.html"
    printf '%s|%s|%s\n' "bad$number.html" "$1" "$2" >>wanted
}
number=0
page good "$sound"
bad "a page that is not XML" "not well-formed: mismatched tag" "$sound<p>a<br></p>"
bad "a page that is too large" "of 400000 at most" "$sound<!-- $(head -c 400000 /dev/zero | tr '\0' x) -->"
bad "an error in a script" "script: ReferenceError: nothing is not" "$sound<script>nothing()</script>"
bad "an error when the pointer comes" "script: ReferenceError: lost" \
    "$sound<svg height=\"20\" onpointermove=\"lost()\"><text y=\"15\">a chart</text></svg>"
bad "an error when a button is clicked" "script: TypeError" "$sound<button onclick=\"null.x = 1\">click</button>"
bad "a line on the console" "console: trouble" "$sound<script>console.error(\"trouble\")</script>"
bad "a file from elsewhere" "asks for https://example.org/a.css" \
    "$sound<style>@import url(https://example.org/a.css);</style>"
bad "a text over another" 'the texts "red" and "green" overlap' \
    "$sound<svg viewBox=\"0 0 640 40\"><text x=\"10\" y=\"20\">red</text><text x=\"12\" y=\"25\">green</text></svg>"
bad "turned texts over each other" 'the texts "second" and "first" overlap' "$sound<svg viewBox=\"0 0 640 90\">
    <text transform=\"translate(9,80) rotate(-45)\">first</text>
    <text transform=\"translate(14,80) rotate(-45)\">second</text></svg>"
bad "a text that is cut off" 'the text "a long name" is cut off' \
    "$sound<svg viewBox=\"0 0 640 40\"><text x=\"600\" y=\"20\">a long name</text></svg>"
bad "a page that is wider than a phone" "pixels wide in a window of 390" \
    "$sound<div style=\"width: 600px; height: 1px\"></div>"
bad "a text in the colour of its ground" 'has a contrast of 1.0' "$sound<p style=\"color: var(--ground)\">unseen</p>"
bad "a page that is light in the dark" "dark: the page's ground is" \
    "<style>:root { --ground: #fff !important; --ink: #000 !important }</style>$sound"
bad "letters that are too small" '"tiny" is 5.0 pixels high' "$sound<p style=\"font-size: 5px\">tiny</p>"
bad "a chart with nothing in it" 'the svg "empty" is blank' \
    "$sound<svg viewBox=\"0 0 640 40\"><title>empty</title></svg>"
bad "a picture that is broken" 'the picture "cat" cannot be shown' \
    "$sound<img alt=\"cat\" width=\"50\" src=\"data:image/png;base64,iVBORw0KGgo=\"/>"
bad "a page that is there by its script alone" "light, without scripts: shows no text" "<script>//<![CDATA[
document.body.innerHTML = \"$(echo "$sound" | tr '\n' ' ' | sed 's/"/\\"/g')\"
//]]></script>"

# look STATUS PAGE...: was that the exit status, and did nothing fail?
look() {
    wanted=$1
    shift
    "$plain" "$root/tests/report/check_page.py" "$@" >out 2>err
    status=$?
    [ "$status" -eq "$wanted" ] && [ ! -s err ]
}

good=0
look 0 good.html --says 61.24
ended=$?
if [ "$status" -eq 77 ]; then
    good=77 # without a browser, only size and XML
    skip "pages in a browser" "$(cat out)"
    names='bad1.html bad2.html'
    sed -i 3,\$d wanted
else
    check "a page without a defect" $ended "$(head -n 1 out) $(head -n 1 err)"
    look 1 good.html --says '<script>' && grep -q "does not say '<script>'" out
    check "a page without a text that it has to have" $? "$(head -n 1 out) $(head -n 1 err)"
fi
if [ "$slow" = 0 ]; then
    look 1 $names
    check "bad pages" $? "$(head -n 1 err)"
    while IFS='|' read -r page name words; do
        grep "^$page: " out >said
        [ "$(wc -l <said)" -eq 1 ] && grep -qF -e "$words" said
        check "$name" $? "$(cat said)"
    done <wanted
fi

# == Pages of runs ===================================================================================================

# page_of NAME FILE [TEXTS]: a page without a defect that contains these texts, one a line.
page_of() {
    name=$1 file=$2 texts=${3-}
    set --
    while IFS= read -r text; do [ -z "$text" ] || set -- "$@" --says "$text"; done <<TEXTS
$texts
TEXTS
    look "$good" "$file" "$@"
    check "$name" $? "$(head -n 3 out | tr '\n' ' ')$(head -n 1 err)"
}

# Folders with hostile names of a data set with hostile classes.
odd='<script>alert("&amp;")'
for class in "<b>bold" 'two
lines' '"quoted" & '"'this'" '日本 ćśź' "$(head -c 60 /dev/zero | tr '\0' w)"; do
    for split in train val; do
        mkdir -p "set/$split/$class" && cp "$root"/tests/corpus/jpeg/colour4*.jpg "set/$split/$class"
    done
done
images="--data set --img-size 16 --patch-size 4 --dim 16 --depth 2 --heads 2 --batch-size 8 --epochs 3
    --warmup-epochs 0 --log-every 1"
run $images --attn ripple --seed 1 --run-dir "$odd"
run $images --attn ripple --seed 2 --run-dir second
run $images --attn softmax --run-dir 'one"run'
page_of "a run of train_vit with hostile names" "$odd/report.html" "$odd
<b>bold
\"quoted\" & 'this'
日本 ćśź
$(last_row "$odd" | awk -F , '{ printf "%.2f %%", $7 }')"
run --compare "$odd" second 'one"run' --out compare.html
page_of "runs compared" compare.html 'one"run'
run --compare "$root/docs/league.csv" --out league.html
page_of "the league" league.html ripple
mkdir old && cp "$odd/log.csv" old && run --report old
page_of "a folder of an older version" old/report.html old

vit=$build/train_detr
net='--backbone-blocks 1,1,1,1 --backbone-width 4 --scene-size 64 --train-limit 12 --epochs 2'
scales='--scale-min 64 --scale-max 64 --max-size 96 --crop false --eval-scale 64 --val-limit 7 --batch-size 6'
run $net $scales --dim 16 --ffn 24 --heads 2 --encoder-layers 1 --decoder-layers 2 --queries 9 --run-dir boxes
page_of "a run of train_detr" boxes/report.html boxes
vit=$build/train_mask_rcnn
run $net $scales --fpn-width 8 --box-width 16 --mask-width 8 --anchor-size 4 --train-candidates 100 \
    --eval-candidates 100 --proposals 40 --detections 20 --anchor-sample 32 --region-sample 32 --warmup-steps 2 \
    --run-dir masks
page_of "a run of train_mask_rcnn" masks/report.html masks
vit=$build/train_semantic_fpn
run $net --fpn-dim 8 --head-dim 32 --scale-long 64 --scale-short 64 --scale-min 1 --scale-max 1.5 --crop-size 64 \
    --val-limit 5 --batch-size 4 --log-every 1 --run-dir pixels
page_of "a run of train_semantic_fpn" pixels/report.html pixels
vit=$build/train_ar
run --data shapes --image-side 8 --train-limit 64 --validation-images 16 --test-limit 8 --dim 16 --depth 2 --heads 2 \
    --attn sparse-strided --stride 24 --epochs 2 --batch-size 16 --warmup-steps 1 --run-dir bytes
page_of "a run of train_ar" bytes/report.html bytes

echo "1..$count"
[ "$failures" -eq 0 ]
