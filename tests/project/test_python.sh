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
