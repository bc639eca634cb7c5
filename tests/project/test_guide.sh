#!/bin/sh
# The commands of docs/guide/*.md run as they are printed, each page in a folder with small data, and print what the page shows.
# tests/project/run_page.py says how a page marks blocks that are output or cannot be run.
#
#   BUILD=build/cpu sh tests/project/test_guide.sh [PAGE.md...]
#
# Programs are found as ./build/cpu/train_*: tests/project/short_run.sh makes a training short.  `make` does nothing, because
# everything is built, except that `make install PREFIX=...` installs.

# shellcheck disable=SC2010,SC2046,SC2086,SC2154 # names without spaces; variables of tap.sh
. "$(dirname "$0")/../tap.sh"

[ -n "$python" ] || { skip "pages of the guide" "no Python with numpy here"; echo "1..$count"; exit 0; }

# == A folder as a reader has it ======================================================================================

mkdir -p place/build/cpu tools
for name in configs docs examples scripts python tests; do ln -s "$root/$name" place/$name; done
cat >tools/make <<END
#!/bin/sh
case "\$*" in *PREFIX=*) exec $(command -v make) -s -C "$root" "BUILD=$build" MPI=0 install-built \${2:+"\$2"} ;; esac
END
chmod +x tools/make
for program in train_vit train_detr train_mask_rcnn train_semantic_fpn train_ar pack_dataset; do
    cp "$root/tests/project/short_run.sh" place/build/cpu/$program
done
chmod +x place/build/cpu/*
ln -s "$work/place/build/cpu/"* tools/
PATH=$work/tools:$PATH PROGRAMS=$build PRINTED=$work/printed
export PATH PROGRAMS PRINTED

# Their own tests run three pages, with the tools that these need.
[ $# -gt 0 ] || set -- $(ls "$root/docs/guide" | grep -vxE '(python|onnx|browser)\.md')
pages=
for page; do pages="$pages $root/docs/guide/$page"; done
"$python" "$root/tests/project/guide_data.py" place $pages >out 2>&1
check "the data of the pages" $? "$(tail -n 1 out)"

# == The pages ========================================================================================================

for page; do
    rm -rf here printed && cp -R place here && mkdir printed
    "$python" "$root/tests/project/run_page.py" "$root/docs/guide/$page" >page.sh
    (cd here && timeout -k 5 300 sh ../page.sh 3>../blocks)
    status=$?
    last=$(sed -n 's/^run //p' blocks | tail -n 1)
    [ $status -eq 0 ] && [ "$(tail -n 1 blocks)" = end ]
    check "$page: $(grep -c '^run' blocks) blocks run, $(grep -c '^not run' blocks) not" $? \
        "status $status, after line $last: $(tail -n 3 "printed/$last" 2>/dev/null | tr '\n' ' ')"
    sed -n 's/^not run: /# not run: /p' blocks
    "$python" "$root/tests/project/run_page.py" "$root/docs/guide/$page" printed >out 2>&1
    check "$page: output and files as shown" $? "$(tr '\n' ' ' <out)"
done

echo "1..$count"
[ "$failures" -eq 0 ]
