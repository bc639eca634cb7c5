#!/bin/sh
# scripts/league.sh and league.py: an interrupted run has the same row as an uninterrupted one, and the page follows
# from the rows.
#
#   BUILD=build/cpu sh tests/project/test_league.sh

# shellcheck disable=SC2015,SC2016,SC2154 # backticks of Markdown; variables of tap.sh
. "$(dirname "$0")/../tap.sh"

# league FOLDER COMMAND: with the rows, the build and the results of the folder.
league() {
    TABLE=$PWD/$1/table CSV=$PWD/$1/rows.csv WORK=$PWD/$1 TRAIN_VIT=$vit DATA=$PWD/none WORKERS=${workers:-1} NICE=0 \
        timeout 60 sh "$root/scripts/league.sh" "$2" >out 2>err
    status=$?
}

# rows FOLDER: without seconds, which are timings.
rows() { sort "$1/rows.csv" | cut -d , -f 1-9,11-; }

wait_until() { # COMMAND...: for a minute at most
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || return 1
        sleep 0.2
    done
}
holds() { [ -f "$2" ] && [ "$(wc -l <"$2")" -ge "$1" ]; }
finished() { [ "$(cut -d , -f 1 "$1/rows.csv" | wc -l)" -eq 3 ] && [ -z "$(ls "$1/runs")" ]; }
process() { cat "$1"/runs/*.lock/"$2"; }
gone() { case $(ps -p "$1" -o stat= 2>/dev/null) in '' | Z*) ;; *) return 1 ;; esac; } # a process that was not waited for has ended
kill_now() { # PROCESS...
    kill -9 "$@"
    for pid; do wait_until gone "$pid"; done
}

cat >tiny.ini <<'END'
data = shapes
train_limit = 5000
test_limit = 64
img_size = 32
patch_size = 4
dim = 16
depth = 2
heads = 2
batch_size = 50
END
for folder in whole killed; do
    mkdir $folder
    {
        echo "# two tiny models on generated images"
        echo
        echo "softmax+a $PWD/tiny.ini 6 1"
        echo "linear $PWD/tiny.ini 4 2 --crop-padding 2"
    } >$folder/table
done

league whole rows
[ "$(cat out)" = "$(grep -v '^#\|^$' whole/table)" ]
check "rows lists what is left" $? "$(head -n 1 out)"
(unset TABLE && CSV=$work/none.csv sh "$root/scripts/league.sh" rows) >out 2>err
grep -q '^swin .* 30 1 --warmup-epochs 3 --window 4$' out && grep -q '^linear .* 200 1 --warmup-epochs 20 *$' out && ! grep -q ' 10 . --warm' out
check "the league's longer runs warm up for a tenth of their epochs" $? "$(grep '^swin .* 30 1' out)"
mkdir "with space" && cp whole/table "with space"
league "with space" start
wait_until holds 2 "with space"/runs/softmax+a-6-1/log.csv
league "with space" stop
league "with space" status
grep -q '^0 workers, 2 of 2 rows left' out
check "a stop where a folder's name has a space" $? "$(head -n 1 out)"
league whole start
wait_until finished whole
check "rows that nothing interrupts" $? "$(tail -n 1 whole/rows.csv) $(cat whole/failed 2>/dev/null)"
grep -q '^linear,--crop-padding 2,4,2,[0-9.]*,[0-9.]*,[0-9.]*,[0-9]*,[0-9.]*,[0-9.]*,[^,]*,[^,]*,20..-..-..$' whole/rows.csv
check "a row has its figures, processor, commit and date" $? "$(tail -n 1 whole/rows.csv)"

# Two workers, each killed with its run; one of them alone; the run alone; a stop.
epoch() { holds "$1" "$run/log.csv"; }
workers=1
league killed start
run=killed/runs/softmax+a-6-1
wait_until epoch 4 # a row of the second epoch: the first one is saved
worker=$(process killed worker) child=$(process killed child)
kill_now "$worker" "$child"
league killed start
check "a start after a kill of worker and run" $status "$(cat out err)"
wait_until epoch 5
old=$(process killed worker) child=$(process killed child)
kill_now "$old" # the run goes on without it
league killed start
gone "$child"
check "a start ends the run that a killed worker left" $? "$child"
wait_until epoch 6
[ "$(grep -c '^resumed at epoch' $run.out)" -eq 2 ]
check "both go on from the last saved state" $? "$(grep '^resumed' $run.out | tr '\n' ' ')"
sh -c 'while :; do sleep 1; done' scripts/league.sh work elsewhere --epochs & # has the numbers that a worker and a run had before a restart
foreign=$!
mkdir killed/runs/gf-1-1.lock
echo $foreign | tee killed/worker.2 >killed/runs/gf-1-1.lock/child
league killed stop
[ "$status" -eq 0 ] && [ -z "$(ls -d killed/runs/*.lock 2>/dev/null)" ] && [ ! -e killed/worker.1 ]
check "a stop" $? "$(cat out err)"
kill $foreign 2>err
check "it ends only processes of this league" $? "$(cat err)"
league killed status
grep -q '^0 workers, [12] of 2 rows left' out
check "its status" $? "$(head -n 1 out)"
workers=2
league killed start
wait_until finished killed
check "all rows come" $? "$(cat killed/failed 2>/dev/null)"
rows whole >rows.1
rows killed >rows.2
cmp -s rows.1 rows.2
check "and equal those of runs that nothing interrupted" $? "$(diff rows.1 rows.2 | head -n 2 | tr '\n' ' ')"
league killed start
league killed rows
[ ! -s out ] && [ "$(wc -l <killed/rows.csv)" -eq 3 ]
check "a row that is there is not trained again" $? "$(cat out)"
truncate -s -20 killed/rows.csv
league killed rows
[ "$(wc -l <out)" -eq 1 ]
check "but one of which a full disk kept a part is" $? "$(cat out)"

# A run that fails keeps its message, and the other runs are not affected.
mkdir failing
{ echo "hydra $PWD/tiny.ini 1 1 --dim 17"; tail -n 1 killed/table; } >failing/table
workers=1
league failing start
wait_until holds 2 failing/rows.csv
league failing status
grep -q '^0 workers, 1 of 2 rows left\|^1 workers, 1 of 2' out && grep -q '^failed: hydra 1 1: .*dim' out && ! grep -q hydra failing/rows.csv
check "a run that fails is reported, and is no row" $? "$(tr '\n' ' ' <out)"

(unset TABLE && cd "$root" && WORK=$work/none DATA=$work/none CSV=$work/none.csv TRAIN_VIT=$vit sh scripts/league.sh start) >out 2>err
status=$?
complains 1 'none|fetch_cifar.sh|DATA'
check "without images, one line says how to get them" $? "status $status: $(cat err)"
echo other >none.csv
(cd "$root" && WORK=$work/none TABLE=$work/whole/table CSV=$work/none.csv TRAIN_VIT=$vit sh scripts/league.sh start) >out 2>err
status=$?
complains 1 'none.csv|columns'
check "a file of other columns is refused" $? "status $status: $(cat err)"

# == scripts/records.sh ===============================================================================================

# A program with 2,500 images a second, which does not train: two epochs of 50,000 images fit into one minute.
cat >quick <<'END'
#!/bin/sh
case "$*" in *--bench*) echo "{\"train_images_per_s\": ${SPEED:-2500}.00}" ;; *) echo "stands in for $*"; exit 1 ;; esac
END
chmod +x quick
records() {
    TRAIN_VIT=$PWD/quick WORK=$PWD/records CSV=$PWD/records.csv PRECISION=float32 THREADS=1 CANDIDATES="plain deep" \
        timeout 60 sh "$root/scripts/records.sh" "$@" >out 2>err
    status=$?
}
records search cifar100 1
{
    config=configs/cpu/cifar100-fast.ini
    echo "softmax+cifar100-1-search-plain $config 2 1 --precision float32 --eval-every 2 --val-fraction 0.1"
    echo "softmax+cifar100-1-search-deep $config 2 1 --depth 4 --precision float32 --eval-every 2 --val-fraction 0.1"
} >wanted
diff wanted records/cifar100-1/rows >out
check "a search has the epochs that fit, and holds images out" $? "$(head -n 2 out | tail -n 1)"
wait_until holds 2 records/cifar100-1/failed
records stop cifar100 1
SPEED=9000
export SPEED
records final cifar100 1 deep
[ "$(tail -n 3 records/cifar100-1/rows | grep -c 'deep.* 2 [123] --depth 4 --precision float32 --eval-every 2$')" -eq 3 ]
check "the chosen one has three seeds, all images, and the epochs of the search" $? "$(tail -n 1 records/cifar100-1/rows)"
records stop cifar100 1
records final cifar100 1 nothing
complains 1 'nothing|plain'
check "another name is refused" $? "status $status: $(cat err)"
records search mnist 1
complains 1 'mnist|cifar10'
check "and other data" $? "status $status: $(cat err)"

# == scripts/study_distillation.sh ====================================================================================

# A copy, so that its default files are here.
mkdir scripts
cp "$root/scripts/study_distillation.sh" scripts
LIMIT=2 TRAIN_VIT=$PWD/quick sh scripts/study_distillation.sh >out 2>err
status=$?
[ -f build/distillation-2/rows.csv ] && [ ! -e docs ] && complains 1 'alone|stands in'
check "rows of a trial are apart from those of all images" $? "status $status: $(cat err)"
{
    echo model,precision,epochs,teacher_epochs,seed,top1,top5,val_loss,seconds,date
    for row in teacher,float32,30,,1,50 hard,float32,10,30,1,40 hard,float32,10,30,2,41; do echo "$row,70,2,100,2026-01-01"; done
} >trial.csv
CSV=trial.csv sh scripts/study_distillation.sh table | tr -s ' ' >out 2>err
grep -qx 'teacher, float32, 30 epochs 50.00 %' out &&
    grep -qx 'hard, float32, 10 epochs, teacher 30 40.50 % standard error 0.50 of 2' out
check "one seed has no standard error" $? "$(tr '\n' ' ' <out)"

# == scripts/league.py ===============================================================================================

# The page of invented results: its claims are decided by means and standard errors over seeds, and an added row changes
# it.
plain=$(command -v python3 || echo /usr/bin/python3)
page() { "$plain" "$root/scripts/league.py" --docs pages "$@" >out 2>err; }
says() { grep -qF "$1" pages/reference/league.md; }
mkdir pages
cp "$root/docs/paper_tables.csv" pages
{
    echo operator,flags,epochs,seed,top1,top5,val_loss,parameters,million_macs,seconds,processor,commit,date
    for row in softmax,1,30 softmax,2,31 softmax,3,32 lisa,1,33 lisa,2,34 gf,1,33 gf,2,35 dwconv7,1,30.5 dwconv7,2,31.5 \
        convattn,1,40; do
        echo "${row%%,*},,10,$(echo "$row" | cut -d , -f 2-3),60,3,170000,10,100,a,b,2026-01-01"
    done
    echo softmax,--warmup-epochs 3,30,1,40,60,3,170000,10,100,a,b,2026-01-01
} >pages/league.csv
page && page --check
check "league.py writes a page, and the same again" $? "$(cat err)"
says '| LiSA is ahead of softmax attention | 74.90 and 71.00 | 33.50 ± 0.50 and 31.00 ± 0.58: +2.50 ± 0.76, 10 epochs | **seen** |'
check "a lead of more than its standard error is seen" $? "$(grep 'LiSA is ahead of softmax attention |' pages/reference/league.md)"
says '34.00 ± 1.00: -3.00 ± 1.15, 10 epochs | **not seen** |'
check "the other way round it is not" $? "$(grep 'Softmax attention is ahead of global' pages/reference/league.md)"
says '31.00 ± 0.50: +0.00 ± 0.76, 10 epochs, level | **undecided** |'
check "level rows decide nothing" $? "$(grep 'Softmax attention is ahead of depthwise' pages/reference/league.md)"
! grep -q 'warmup-epochs' pages/reference/league.md && says '| `softmax` | 40.00 | 1 |'
check "a flag of thirty epochs is not among those of ten" $? "$(grep 'warmup-epochs' pages/reference/league.md)"
says '| LiSA is ahead of convolutional attention | 74.90 and 73.30 | too few rows: `lisa` 33.50 (2 seeds, 10 epochs), `convattn` 40.00 (1 seed, 10 epochs) | **undecided** |'
check "nor does one seed" $? "$(grep 'LiSA is ahead of convolutional' pages/reference/league.md)"
{
    echo operator,tokens,batch,train_images_per_s,infer_images_per_s,peak_bytes,device,date
    echo 'lisa,64,8,500,900,64000000,"a CPU, one thread",2026-01-01'
    echo 'gf,64,8,501,900,64000000,"a CPU, one thread",2026-01-01'
} >pages/league-speed.csv
page --check
status=$?
[ $status -eq 1 ] && complains 1 'league.md|run python3 scripts/league.py'
check "results that the page lacks are reported" $? "$(cat err)"
page && page --check && says '| `lisa` | 33.50 ± 0.50 | 2 | 170,000 | 10 | 500 |  |  | 61 |  |  |' && grep -q '>lisa</text>' pages/images/league.svg
check "speeds come into the table and the picture" $? "$(cat err)"

# Forty dots in a crowd: no name covers another, or a dot.
seed=${VIT_TEST_SEED:-$$}
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$root/scripts "$plain" - "$seed" >out 2>&1 <<'END'
import random, sys
import league_picture as picture
random.seed(sys.argv[1])
dots = [(min(860, max(70, random.gauss(500, 150))), min(560, max(50, random.gauss(300, 90)))) for _ in range(40)]
names = ["x" * random.randint(2, 22) for _ in dots]
boxes = picture.place(dots, names)
assert len(boxes) == len(dots)
for i, box in enumerate(boxes):
    assert not any(picture.overlap(box, other) for other in boxes[i + 1:]), names[i]
    assert not any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in dots), names[i]
END
check "no name in a picture covers another, or a dot" $? "seed $seed $(tail -n 1 out)"

echo "1..$count"
[ "$failures" -eq 0 ]
