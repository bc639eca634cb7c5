#!/bin/sh
# The page of a run, report.html in its folder: its figures are those of log.csv; it is complete at any moment, if it
# cannot be written there is only a warning, and --report makes it again for any folder.  TAP on standard output,
# evidence behind '# '.
#
#   VIT_TEST_SEED=17 sh tests/programs/test_report.sh      kills at other moments

# shellcheck disable=SC2012,SC2015,SC2046,SC2086 # settings are lists of words; no name that is not quoted holds a space
. "$(dirname "$0")/../tap.sh"

seed=${VIT_TEST_SEED:-$(date +%s)}
echo "# SEED=$seed"
ar=$build/train_ar

# shows PAGE TEXT...: is each of them in the page, as a text or a part of one?
shows() {
    page=$1
    shift
    for one; do grep -qF -e "$one" "$page" || { lacks=$one; return 1; }; done
    lacks=nothing
}
is_whole() { [ "$(head -c 9 "$1")" = '<!DOCTYPE' ] && [ "$(tail -n 1 "$1")" = '</html>' ]; }
# figure RUN COLUMN FORMAT last|best: a column's last or greatest value
figure() {
    awk -F , -v name="$2" -v format="$3" -v which="$4" '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        $at[name] != "" && (which == "last" || !any || $at[name] > value) { value = $at[name] + 0; any = 1 }
        END { printf format, value }' "$1/log.csv"
}
# fact RUN NAME: a plain value of report.json, unchanged
fact() { sed -n "s/^  \"$2\": \(.*[^,]\),*\$/\1/p" "$1/report.json"; }

# == A run, and its page =============================================================================================

run $tiny --epochs 3 --log-every 1 --lr 1e-3 --run-dir plain
[ "$status" -eq 0 ] && [ ! -s err ] && is_whole plain/report.html && grep -qF 'report.html are in plain' out
check "a run leaves a page, and says so" $? "status $status $(wc -c <plain/report.html) bytes"
shows plain/report.html "$(figure plain top1 '%.2f %%' best)" "$(figure plain top1 '%.2f %%' last)" \
    "$(figure plain loss %.4f last)" "validation $(figure plain val_loss %.4f last)" "$(figure plain images_per_s %.0f last)"
check "its figures are those of the log" $? "lacks $lacks"
shows plain/report.html 'train_vit, done: 3 of 3 epochs; top-1 ' 'train_vit --resume plain' 'warmup_epochs' 'train_limit' \
    'float32' 'Learning rate'
check "it shows the result, the settings and how to resume" $? "lacks $lacks"
[ ! -e "$root/.git" ] || shows plain/report.html '>commit<'
check "and the commit of a checkout" $? "$(fact plain commit)"
! grep -q 'http-equiv="refresh"' plain/report.html && ! grep -oE ' (src|href)="[^"]*' plain/report.html |
    grep -vE '="(#|data:)' >links
check "a page that is done neither loads anything nor itself" $? "$(head -n 3 links | tr '\n' ' ')"

cp plain/report.html kept.html
cp plain/report.json kept.json
run --report plain
[ "$status" -eq 0 ] && [ "$(cat out)" = plain/report.html ] && cmp -s kept.html plain/report.html &&
    cmp -s kept.json plain/report.json
check "--report makes the same page again, and prints its path" $? "status $status $(head -n 1 err)"
run --report plain/ --out elsewhere.html
[ "$status" -eq 0 ] && cmp -s kept.html elsewhere.html
check "or another file" $? "status $status $(head -n 1 err)"

# == Going on ========================================================================================================

sed -i 's/"began": [0-9]*/"began": 1000000000/' plain/report.json
began=$(fact plain began)
run --resume plain --epochs 4
[ "$status" -eq 0 ] && [ "$(fact plain began)" = "$began" ] && shows plain/report.html 'done: 4 of 4 epochs' \
    "$(figure plain loss %.4f last)"
check "a resumed run goes on with its page" $? "began $began and $(fact plain began), lacks $lacks"
result=$(fact plain result)
run --resume plain
[ "$status" -eq 0 ] && shows plain/report.html 'done: 4 of 4 epochs; best top-1' && [ -n "$result" ]
check "and one with nothing left to train keeps its result" $? "$result, $(fact plain result)"

longer="$model --train-limit 1024 --test-limit 32 --batch-size 16 --warmup-epochs 0 --log-every 5"
stop_run TERM '^30,' stopped/log.csv $longer --epochs 40 --run-dir stopped
[ "$status" -eq 143 ] && shows stopped/report.html 'train_vit, stopped: ' '; SIGTERM after step ' && is_whole stopped/report.html
check "a stopped run says so on its page" $? "status $status, lacks $lacks"

: >out
"$vit" $longer --epochs 40 --run-dir killed >out 2>err &
pid=$!
wait_for $pid '^65,' killed/log.csv
kill -9 $pid
wait $pid 2>/dev/null
shows killed/report.html 'http-equiv="refresh"' 'train_vit, running: ' ' left'
check "the page of a run that lives loads itself again" $? "lacks $lacks"
run --report killed
shows killed/report.html 'running: ' 'last update at 2'
check "--report says when a killed run last wrote" $? "lacks $lacks"

run $tiny --epochs 1 --run-dir lost
run --resume lost --epochs 50 --lr 100 --lr-min 100 --eps 0 --weight-decay 10
[ "$status" -eq 1 ] && shows lost/report.html 'train_vit, failed: ' '; step ' ' is not a number'
check "a run whose loss is lost says so on its page" $? "$(head -n 1 err), lacks $lacks"

# == Whole at any moment =============================================================================================

# Epochs of four steps, with an evaluation and a page each.  Every other run is killed only after a step, however slow the
# machine is.  test_faults.sh kills runs at single changes of a file, too.
kills=0 steps=0 wrong=
run $tiny --epochs 1 --log-every 1 --run-dir chopped
for pause in $(awk -v seed="$seed" 'BEGIN { srand(seed); for (i = 0; i < 14; i++) printf "%.3f\n", 0.4 * rand() }'); do
    rows=$(wc -l <chopped/log.csv)
    "$vit" --resume chopped --epochs 1000 >out 2>err &
    pid=$!
    if [ $((kills % 2)) -eq 0 ]; then
        tries=0
        while [ "$(wc -l <chopped/log.csv)" -le "$rows" ] && [ $tries -lt 600 ]; do sleep 0.05 && tries=$((tries + 1)); done
        [ $tries -eq 600 ] || steps=$((steps + 1))
    fi
    sleep $pause
    kill -9 $pid && kills=$((kills + 1))
    wait $pid 2>/dev/null
    [ ! -s err ] || wrong="says $(head -n 1 err)"
    is_whole chopped/report.html || wrong="a part of a page"
    [ "$(tail -c 1 chopped/report.json)" = '}' ] || wrong="a part of report.json"
    run --report chopped --out again.html
    [ "$status" -eq 0 ] || wrong="--report: $(head -n 1 err)"
done
[ "$kills" -eq 14 ] && [ "$steps" -eq 7 ] && [ -z "$wrong" ]
check "after kill -9 there is a whole page" $? "$kills kills, $steps after a step${wrong:+, $wrong}"
run --resume chopped --epochs $(($(place chopped/state.safetensors | cut -d ' ' -f 2) + 1))
[ "$status" -eq 0 ] && [ "$(find chopped -name 'report.*.tmp.*' | wc -l)" -eq 0 ]
check "and what was begun of others goes when the run is resumed" $? "status $status $(ls chopped | tr '\n' ' ')"

# == Where it cannot be written ======================================================================================

# told_once: the run ended well, with one line on stderr.
differs='not compared'
told_once() { [ "$status" -eq 0 ] && complains 0 "$1|continues without its page"; }
run $tiny --epochs 3 --run-dir undisturbed
if [ -c /dev/full ]; then
    mkdir full && ln -s /dev/full full/report.html && ln -s /dev/full full/report.json
    run $tiny --epochs 3 --run-dir full
    told_once 'No space left on device' && same_run undisturbed full
    check "a full disk costs the page and one warning, not a bit of the run" $? "$(head -n 1 err), differs: $differs"
    run --report undisturbed --out /dev/full
    complains 1 '/dev/full|No space left on device'
    check "--report on a full disk is an error" $? "status $status $(head -n 1 err)"
else
    skip "a full disk costs the page and one warning, not a bit of the run" "no /dev/full"
fi
mkdir -p folders/report.html
run $tiny --epochs 3 --run-dir folders
told_once 'folders/report.html: ' && same_run undisturbed folders
check "so does a folder of that name" $? "$(head -n 1 err), differs: $differs"
cp -R undisturbed broken
echo '{"report": ' >broken/report.json
run --resume broken --epochs 4
[ "$status" -eq 0 ] && complains 0 'broken/report.json: line 2: not JSON|begins anew' && is_whole broken/report.html
check "facts that are none cost a warning" $? "$(head -n 1 err)"

# == Other folders ===================================================================================================

cp -R undisturbed old
rm old/report.*
run --report old
[ "$status" -eq 0 ] && is_whole old/report.html && [ ! -e old/report.json ] && shows old/report.html \
    "$(figure old top1 '%.2f %%' best)" 'warmup_epochs' 'others have their defaults'
check "a folder of a version without pages gets one" $? "lacks $lacks $(head -n 1 err)"
cp undisturbed/log.csv kept.csv
mkdir bare && cp kept.csv bare/log.csv
succeeds "and so does a log alone" --report bare

mkdir hostile
cp -R undisturbed "hostile/<script>\"'&"
run --report "hostile/<script>\"'&"
[ "$status" -eq 0 ] && shows "hostile/<script>\"'&/report.html" '&lt;script&gt;' && ! grep -qF "<script>\"'" "hostile/<script>\"'&/report.html"
check "a folder's name is a text" $? "status $status $(head -n 1 err), lacks $lacks"
run $tiny --epochs 1 --run-dir "it's here"
shows "it's here/report.html" "train_vit --resume 'it'" && [ "$status" -eq 0 ]
check "in a command it has quotes where a shell needs them" $? "$(fact "it's here" resume)"

if [ -x "$ar" ]; then
    "$ar" --report undisturbed --out other.html >out 2>err
    status=$?
    [ "$status" -eq 0 ] && shows other.html 'train_vit --report shows which of them differ from the defaults' "$(figure old top1 '%.2f %%' best)"
    check "another program's run has a page, without defaults" $? "status $status $(head -n 1 err), lacks $lacks"
else
    skip "another program's run has a page, without defaults" "no train_ar"
fi

mkdir empty nonsense
head -c 3000 "$vit" >nonsense/log.csv
refuses "--report of nothing" 1 'missing|no such folder' --report missing
refuses "--report of a folder without a run" 1 'empty: neither log.csv nor report.json' --report empty
refuses "--report of a log that is none" 1 'nonsense/log.csv: ' --report nonsense
rm nonsense/log.csv
echo '[]' >nonsense/report.json
refuses "--report of facts that are none" 1 'nonsense/report.json: not the facts of a run' --report nonsense
refuses "--report and training's modes" 2 '--report|not together with --eval' --report plain --eval
refuses "--report into an input" 2 'plain/log.csv|an input of this call' --report plain --out plain/log.csv
refuses "--compare without --out" 2 '--compare|needs --out' --compare plain undisturbed
refuses "--compare of a folder without a run" 1 'empty' --compare plain empty --out both.html
run --compare plain undisturbed --out both.html
[ "$status" -eq 0 ] && [ "$(cat out)" = both.html ] && is_whole both.html && shows both.html plain undisturbed
check "--compare writes a page, and prints its path" $? "status $status $(head -n 1 err), lacks $lacks"

# == What it costs ===================================================================================================

# An epoch of scripts/demo.sh, which ends with a page, takes 17 s on two cores.
least=1000000
for _ in 1 2 3 4 5; do
    began=$(date +%s%N)
    "$vit" --report plain >/dev/null
    took=$((($(date +%s%N) - began) / 1000000))
    [ "$took" -ge "$least" ] || least=$took
done
[ "$least" -lt 170 ] || [ "$slow" != 0 ]
check "a page takes less than a hundredth of the demo's epoch" $? "$least ms with the program's start"

echo "1..$count"
[ "$failures" -eq 0 ]
