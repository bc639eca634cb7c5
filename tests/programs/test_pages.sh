#!/bin/sh
# Pages of runs as a reader sees them, in a browser: tests/report/check_page.py, and first whether it can tell a bad page.
#
#   BUILD=build/cpu sh tests/programs/test_pages.sh

# shellcheck disable=SC2015,SC2154
. "$(dirname "$0")/../tap.sh"

plain= # a Python, whatever packages it has
for candidate in ${PYTHON:-python3 /usr/bin/python3}; do
    [ -n "$plain" ] || ! "$candidate" -c 'import sys' 2>/dev/null || plain=$candidate
done
if [ -z "$plain" ]; then
    skip "pages" "no python3"
    echo "1..$count"
    exit
fi

# page NAME BODY: a page whose ground and ink follow the browser's scheme.
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
sound='<h1>A run</h1><p>Accuracy 61.24 %, loss 0.93, and as many words as a page has at least, so that it is not blank.</p>
<svg viewBox="0 0 640 300"><title>loss</title><text x="10" y="20">loss</text><text x="10" y="40">accuracy</text>
<path d="M10 200L600 50" stroke="currentColor"/>
<text transform="translate(100,200) rotate(-45)">airplane</text><text transform="translate(125,200) rotate(-45)">automobile</text></svg>
<div class="frame"><table><tr><th>column</th><th style="min-width: 900px">another</th></tr></table></div>
<button onclick="this.textContent = &quot;copied&quot;">copy</button><details><summary>more</summary><p>folded</p></details>'

# All pages are looked at in one call, since a browser takes a second to start.  bad NAME WORDS BODY: a page of which one
# line is said, with these words.
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
    <text transform=\"translate(9,80) rotate(-45)\">first</text><text transform=\"translate(14,80) rotate(-45)\">second</text></svg>"
bad "a text that is cut off" 'the text "a long name" is cut off' \
    "$sound<svg viewBox=\"0 0 640 40\"><text x=\"600\" y=\"20\">a long name</text></svg>"
bad "a page that is wider than a phone" "pixels wide in a window of 390" \
    "$sound<div style=\"width: 600px; height: 1px\"></div>"
bad "a text in the colour of its ground" 'has a contrast of 1.0' "$sound<p style=\"color: var(--ground)\">unseen</p>"
bad "a page that is light in the dark" "dark: the page's ground is" \
    "<style>:root { --ground: #fff !important; --ink: #000 !important }</style>$sound"
bad "letters that are too small" '"tiny" is 5.0 pixels high' "$sound<p style=\"font-size: 5px\">tiny</p>"
bad "a chart with nothing in it" 'the svg "empty" is blank' "$sound<svg viewBox=\"0 0 640 40\"><title>empty</title></svg>"
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

look 0 good.html --says 61.24
if [ "$status" -eq 77 ]; then
    skip "pages in a browser" "$(cat out)"
    look 1 $names
    check "two bad pages are told without one" $? "$(wc -l <out) lines $(head -n 1 err)"
    echo "1..$count"
    [ "$failures" -eq 0 ]
    exit
fi
check "a page without a defect" $? "$(head -n 1 out) $(head -n 1 err)"
look 1 good.html --says '<script>' && grep -q "does not say '<script>'" out
check "a page without a text that it has to have" $? "$(head -n 1 out) $(head -n 1 err)"
look 1 $names
check "bad pages" $? "$(head -n 1 err)"
while IFS='|' read -r page name words; do
    grep "^$page: " out >said
    [ "$(wc -l <said)" -eq 1 ] && grep -qF -e "$words" said
    check "$name" $? "$(cat said)"
done <wanted

echo "1..$count"
[ "$failures" -eq 0 ]
