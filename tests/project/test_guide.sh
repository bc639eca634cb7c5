#!/bin/sh
# The commands of docs/guide/*.md run as they are printed, each page in a folder with small data.  tests/project/run_page.py says
# how a page marks blocks that are output or cannot be run.
#
#   BUILD=build/cpu sh tests/project/test_guide.sh [PAGE.md...]
#
# Programs are found as ./build/cpu/train_*: wrappers that make a training short and change nothing else.  `make` does
# nothing, because everything is built, except that `make install PREFIX=...` installs.

# shellcheck disable=SC2086,SC2154 # variables of tap.sh
. "$(dirname "$0")/../tap.sh"

[ -n "$python" ] || { skip "pages of the guide" "no Python with numpy here"; echo "1..$count"; exit 0; }

# == A folder as a reader has it ======================================================================================

mkdir -p place/build/cpu tools place/photos
for name in configs docs examples scripts python tests; do ln -s "$root/$name" place/$name; done
cat >tools/make <<END
#!/bin/sh
case "\$*" in *PREFIX=*) exec $(command -v make) -s -C "$root" "BUILD=$build" MPI=0 install-built \${2:+"\$2"} ;; esac
END
chmod +x tools/make
for program in train_vit train_detr train_mask_rcnn train_semantic_fpn train_ar pack_dataset; do
    printf '#!/bin/sh\nexec sh "%s/tests/project/short_run.sh" "%s/%s" "$@"\n' "$root" "$build" $program >place/build/cpu/$program
    chmod +x place/build/cpu/$program
done
ln -s "$work/place/build/cpu/"* tools/
PATH=$work/tools:$PATH
export PATH

"$python" "$root/tests/project/guide_data.py" place >out 2>&1
check "the data of the pages" $? "$(tail -n 1 out)"

# == The pages ========================================================================================================

[ $# -gt 0 ] || set -- "$root"/docs/guide/*.md
for page; do
    name=$(basename "$page" .md)
    page=$root/docs/guide/$name.md
    # Their own tests run these, with the tools that they need.
    case $name in python | onnx | browser) continue ;; esac
    rm -rf here && cp -R place here
    "$python" "$root/tests/project/run_page.py" "$page" >page.sh
    (cd here && timeout -k 5 300 sh ../page.sh 3>../blocks >../out 2>../err)
    status=$?
    [ $status -eq 0 ] && [ "$(tail -n 1 blocks)" = end ]
    check "$name.md: $(grep -c '^run' blocks) blocks run, $(grep -c '^not run' blocks) not" $? \
        "status $status, after line $(sed -n 's/^run //p' blocks | tail -n 1): $(tail -n 3 err | tr '\n' ' ')"
    sed -n 's/^not run: /# not run: /p' blocks
done

echo "1..$count"
[ "$failures" -eq 0 ]
