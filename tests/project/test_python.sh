#!/bin/sh
# The package python/vitc: the reference computes the fixtures, checkpoints are loaded and compared with the program,
# and every command of docs/guide/python.md and docs/guide/onnx.md runs as written.
#
#   BUILD=build/cpu sh tests/project/test_python.sh
#
# Needs a python3 with PyTorch and numpy (scripts/deps.sh python), and for the last part with onnx, onnxruntime and
# onnxscript.

# shellcheck disable=SC1091,SC2016,SC2154 # files and variables of tap.sh; commands for another shell
. "$(dirname "$0")/../tap.sh"
PYTHONDONTWRITEBYTECODE=1
export PYTHONDONTWRITEBYTECODE
python=
for candidate in ${PYTHON:-python3 /usr/bin/python3}; do
    [ -n "$python" ] || ! "$candidate" -c 'import torch, numpy' 2>/dev/null || python=$(command -v "$candidate")
done

if ! [ "$python" ]; then
    skip "the package for PyTorch" "no python3 with torch and numpy: sh scripts/deps.sh python"
    echo "1..$count"
    exit 0
fi
onnx=
"$python" -c 'import onnx, onnxruntime, onnxscript' 2>/dev/null && onnx=--onnx

"$python" "$root/tests/reference/make_fixtures.py" --check softmax-cls ripple lisa linear-permute hierarchy-swin >out 2>&1
check "the package gives the fixtures" $? "$(tail -n 1 out)"

"$python" "$root/tests/reference/check_package.py" "$vit" ripple lisa clip-gf compact hierarchy-reduced \
    "$root/configs/compact/cct-2-3x2-cifar100.ini" $onnx >out 2>&1
check "its models are those of the program's checkpoints" $? "$(tail -n 1 out)"

# Models that no fixture has: what an operator counts over all stages, class tokens of the last stage alone, clips with
# frames apart, a product of dim and mlp_ratio that float32 rounds below an integer.
n=0
while read -r settings; do
    n=$((n + 1))
    { echo '[model]'; echo "$settings" | sed 's/; /\n/g'; } >"stages$n.ini"
done <<END
attn = sparse-strided; img_size = 32; dim = 16,24; depth = 1,2; heads = 2,2
attn = sparse-fixed; img_size = 32; dim = 16,24,32; depth = 1,2,1; heads = 2
attn = convattn; img_size = 16; dim = 24; depth = 2; heads = 2; qkv_bias = false
attn = softmax; img_size = 32; dim = 16,24; depth = 1,2; heads = 2; pool = cls; rpe = heads
attn = linear; img_size = 32; dim = 16,24; depth = 1,2; heads = 2; pool = cls; relative = rope
attn = convit; img_size = 32; dim = 16,32; depth = 2,3; heads = 4; convit_local_layers = 3
attn = ripple-dense; data = moving-shapes; frames = 4; img_size = 16; dim = 16; depth = 2; heads = 2; ring_time = 2
attn = ripple-log; data = moving-shapes; frames = 6; img_size = 16; dim = 16; depth = 2; heads = 2; ring_time = 0
attn = focused-reduced,reduced; img_size = 64; dim = 16,24; depth = 1,1; heads = 2; reduction = 4,1; reduction_cells = 3
attn = softmax; img_size = 16; dim = 60; depth = 1; heads = 2; mlp_ratio = 4.2
END
"$python" "$root/tests/reference/check_package.py" "$vit" stages*.ini >out 2>&1
check "and so are models of several stages that no fixture has" $? "$(grep -v ok out | tail -n 3 | tr '\n' ' ')"

"$vit" --data shapes --attn ripple-dense --img-size 8 --patch-size 4 --dim 8,8 --depth 1 --heads 2 --train-limit 8 \
    --test-limit 8 --batch-size 8 --epochs 1 --warmup-epochs 0 --run-dir token >out 2>err &&
    PYTHONPATH=$root/python "$python" -c '
import vitc
assert len(vitc.load("token/last.safetensors").class_names) == 10' >out 2>&1
check "ripple attention on one token has no weights to learn, and the file names ten classes" $? "$(tail -n 1 out err)"

mkdir absent
echo 'raise ModuleNotFoundError("numpy is kept from this test", name="numpy")' >absent/numpy.py
PYTHONPATH=$PWD/absent "$python" "$root/tests/reference/check_operators.py" >out 2>&1
check "its operators, their dropout and types, and its files, without numpy" $? "$(tail -n 1 out)"

# == The pages =======================================================================================================

# A page's blocks in their order as one Python program: lines that begin with pip, python or build/ are commands.
as_program() { # page
    printf 'import os, subprocess\nos.environ["PATH"] = os.path.abspath("bin") + ":" + os.environ["PATH"]\n'
    sed -n 's/^    //p' "$root/docs/guide/$1" |
        sed "s%^\(pip \|python \|build/\)\(.*\)%subprocess.run(r'''\1\2''', shell=True, check=True)%"
}
ln -s "$root/build" build
ln -s "$root/python" python
mkdir bin site
printf '#!/bin/sh\nexec "%s" "$@"\n' "$python" >bin/python
# The page's pip command installs the package into a separate folder; other packages must be installed, because the
# network is not used.
cat >bin/pip <<END
#!/bin/sh
shift
for package; do
    case \$package in
    ./*) set -- --no-deps --target "$work/site" ;;
    *) set -- --dry-run ;;
    esac
    "$python" -m pip install -q --no-index --disable-pip-version-check --root-user-action=ignore "\$@" "\$package" || exit
done
END
chmod +x bin/pip bin/python
PYTHONPATH=$work/site
export PYTHONPATH
"$python" -m pip --version >/dev/null 2>&1 || PYTHONPATH=$root/python # and the page's line is left out

for page in python $([ -z "$onnx" ] || echo onnx); do
    rm -rf runs
    as_program "$page.md" >page.py
    [ "$PYTHONPATH" = "$work/site" ] || sed -i '/pip install/d' page.py
    "$python" page.py >out 2>&1
    check "docs/guide/$page.md: everything on it" $? "$(tail -n 1 out)"
done
[ -n "$onnx" ] || skip "docs/guide/onnx.md: everything on it" "no onnx, onnxruntime and onnxscript"

# == Refusals ========================================================================================================

if [ -n "$onnx" ]; then
    head -c 100 runs/onnx/best.safetensors >x.safetensors
    "$python" -m vitc.export x.safetensors x.onnx >out 2>err
    status=$?
    complains 1 'x.safetensors|not a safetensors file, or damaged' && [ ! -e x.onnx ]
    check "what is no checkpoint is refused in one line" $? "status $status: $(head -n 1 err)"
fi

echo "1..$count"
[ "$failures" -eq 0 ]
