#!/bin/sh
# The package python/vitc: the reference gives the fixtures, checkpoints are loaded and compared with the program, and
# docs/guide/python.md runs as it is printed.
#
#   BUILD=build/cpu sh tests/project/test_python.sh
#
# Needs a python3 with PyTorch and safetensors, and for the last part with onnx, onnxruntime and onnxscript.

# shellcheck disable=SC1091,SC2016,SC2154 # files and variables of tap.sh; commands for another shell
. "$(dirname "$0")/../tap.sh"
PYTHONDONTWRITEBYTECODE=1
export PYTHONDONTWRITEBYTECODE
has() { "${python:-python3}" -c "import $1" 2>/dev/null; }

if ! has "torch, safetensors, numpy"; then
    skip "the package for PyTorch" "no python3 with torch, safetensors and numpy"
    echo "1..$count"
    exit 0
fi
onnx=
has "onnx, onnxruntime, onnxscript" && onnx=--onnx

"$python" "$root/tests/reference/make_fixtures.py" --check softmax-cls ripple lisa linear-permute hierarchy-swin >out 2>&1
check "the package gives the fixtures" $? "$(tail -n 1 out)"

"$python" "$root/tests/reference/check_package.py" "$vit" ripple lisa clip-gf compact hierarchy-reduced $onnx >out 2>&1
check "its models are those of the program's checkpoints" $? "$(tail -n 1 out)"

# The blocks of the page are one Python program; what begins with python or pip is a command.
succeeds "a run to load" --data shapes --attn ripple --depth 1 --dim 24 --heads 2 --train-limit 64 --test-limit 8 \
    --batch-size 32 --epochs 1 --run-dir runs/shapes
PYTHONPATH=$root/python
export PYTHONPATH
sed -n '/^## As ONNX/q; s/^    //p' "$root/docs/python.md" | grep -v '^pip ' >page.py
"$python" page.py >out 2>&1
check "docs/guide/python.md: a checkpoint and an operator" $? "$(tail -n 1 out)"

"$python" -c 'import safetensors.torch as s, torch; s.save_file({"x": torch.zeros(1)}, "x.safetensors")'
if [ -n "$onnx" ]; then
    sed -n '/^## As ONNX/,/^## Does/s/^    //p' "$root/docs/python.md" >as-onnx
    sed -n 's/^python -m vitc/"$python" -m vitc/p' as-onnx >commands.sh
    (. ./commands.sh) >out 2>err && grep -v '^pip \|^python ' as-onnx >>page.py && "$python" page.py >out 2>err &&
        [ "$(sed -n 1p out)" = "$(sed -n 2p out)" ]
    check "docs/guide/python.md: as ONNX, with the same classes" $? "$(tail -n 1 err)"
    "$python" -m vitc.export x.safetensors x.onnx >out 2>err
    status=$?
    complains 1 'x.safetensors|no settings in it' && [ ! -e x.onnx ]
    check "what is no checkpoint is refused in one line" $? "status $status: $(head -n 1 err)"
else
    skip "docs/guide/python.md: as ONNX" "no onnx, onnxruntime and onnxscript"
fi

echo "1..$count"
[ "$failures" -eq 0 ]
