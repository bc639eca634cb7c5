#!/bin/sh
# The page of docs/guide/browser.md, built by the page's own commands with models of one short epoch, and used in
# Chromium without a window: its results equal train_vit's.
#
#   BUILD=build/cpu sh tests/project/test_browser.sh
#
# Needs emscripten (scripts/deps.sh browser) and Chromium.  Screenshots stay in $VIT_TEST_PICTURES, if that is a folder.

# shellcheck disable=SC1091,SC2154 # files and variables of tap.sh
. "$(dirname "$0")/../tap.sh"
unset MAKEFLAGS MFLAGS MAKELEVEL
WASM_MOST=3145728 # bytes
BROWSER_MODELS=$work/models BROWSER_PAGE=$work/index.html TRAIN_VIT=$vit
BROWSER_TRAIN='--epochs 1 --train-limit 400 --test-limit 100 --warmup-epochs 0'
export BROWSER_MODELS BROWSER_PAGE BROWSER_TRAIN TRAIN_VIT

# == Without a browser ===============================================================================================

# The stand-in accepts the headers that jansson accepts, and no other.
headers() { # program, flags...
    program=$1
    shift
    ${CC:-gcc} -std=gnu11 -O1 -ffunction-sections -Wl,--gc-sections -D_GNU_SOURCE -I"$root" \
        "$root/tests/project/headers.c" "$root"/core/*.c "$@" -o "$program" -lm -lpthread &&
        "./$program" "$root"/tests/corpus/safetensors/* "$root/tests/fixtures/castling.safetensors" >"$program.txt"
}
headers jansson -ljansson >log 2>&1 && headers standin "$root/examples/browser/standins/jansson.c" >>log 2>&1 &&
    cmp jansson.txt standin.txt >>log 2>&1 && [ "$(grep -c ' 1 ' jansson.txt)" -gt 100 ]
check "the reader of JSON for a browser reads the headers that jansson reads" $? \
    "$(wc -l <jansson.txt) headers, $(awk '$3 == 1' jansson.txt | wc -l) of them read $(tail -n 1 log)"

# == The page ========================================================================================================

if ! command -v emcc >/dev/null; then
    skip "the page in a browser" "no emscripten: sh scripts/deps.sh browser"
    echo "1..$count"
    [ "$failures" -eq 0 ]
    exit
fi

sed -n '/^## Build it/,/^## /s/^    //p' "$root/docs/guide/browser.md" >commands
grep -q '^make .*browser' commands && (cd "$root" && sh -e "$work/commands") >log 2>&1
check "the commands of docs/guide/browser.md build the page" $? "$(tail -n 1 log)"
size=$(wc -c <"$root/build/browser/vit.wasm")
[ "$size" -le $WASM_MOST ]
check "the library has 3 MB or less" $? "$size bytes"

ln -s "$root/build" build && ln -s "$root/examples" examples && mkdir runs && ln -s ../models/lisa runs/shapes
sed -n '/^## Your own model/,/^## What/s/^    //p' "$root/docs/guide/browser.md" >commands
grep -q assemble.py commands && sh -e commands >out 2>err && grep -q '"name": "Shapes"' mine.html
check "and a page with another model" $? "$(tail -n 1 err)"
python3 "$root/examples/browser/assemble.py" --wasm "$root/build/browser/vit.wasm" --glue "$root/build/browser/vit.js" \
    --out x.html Mine=nowhere >out 2>err
status=$?
complains 1 'nowhere/best.safetensors|train the model first' && [ ! -e x.html ]
check "a model that is not there is refused in one line" $? "status $status: $(head -n 1 err)"

python3 "$root/tests/report/check_browser.py" --vit "$vit" --models models \
    ${VIT_TEST_PICTURES:+--pictures "$VIT_TEST_PICTURES"} index.html >out 2>err
status=$?
if [ "$status" -eq 77 ]; then
    skip "the page in Chromium" "no Chromium: sh scripts/deps.sh browser"
else
    while read -r verdict line; do check "${line%% | *}" "$verdict" "${line#* | }"; done <out
    check "the page was used to the end" "$status" "$(tail -n 1 err)"
fi

echo "1..$count"
[ "$failures" -eq 0 ]
