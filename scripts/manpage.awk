# A manual page from what a program says of itself.
#
#   build/cpu/train_vit --help | awk -f scripts/manpage.awk -v version=1.0 -v share=/usr/local/share/vit.c
#
# --help begins with a sentence about the program, examples behind it; then come lists, each under a line that ends in a
# colon: two spaces, a name, two spaces or more, a text that goes on in lines that are indented further.

function escaped(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    sub(/^[.']/, "\\\\\\&&", text)
    return text
}

NR == 1 {
    name = $1
    about = substr($0, length(name) + 2)
    sub(/\.$/, "", about)
    printf ".TH %s 1 \"\" \"vit.c %s\" \"vit.c\"\n", toupper(name), version
    printf ".SH NAME\n%s \\- %s\n", name, escaped(about)
    printf ".SH SYNOPSIS\n.B %s\n[\\fB\\-\\-\\fIname value\\fR ...]\n", name
    printf ".SH DESCRIPTION\n.B %s\n%s.\n", name, escaped(about)
    next
}

/^$/ {
    if (examples) print ".fi"
    examples = 0
    next
}

# A heading may take several lines.
heading || /^[^ ]/ {
    heading = heading (heading ? " " : "") $0
    sub(/ +/, " ", heading)
    if (!/:$/) next
    sub(/:$/, "", heading)
    printf ".SH \"%s\"\n", toupper(substr(heading, 1, 1)) escaped(substr(heading, 2))
    heading = ""
    lists = 1
    next
}

!lists {
    if (!examples) print ".SH EXAMPLES\n.nf"
    examples = 1
    print escaped(substr($0, 3))
    next
}

/^  [^ ]/ {
    entry = substr($0, 3)
    text = ""
    if (match(entry, /  +/)) {
        text = substr(entry, RSTART + RLENGTH)
        entry = substr(entry, 1, RSTART - 1)
    }
    argument = ""
    if (match(entry, / /)) {
        argument = " \\fI" escaped(substr(entry, RSTART + 1)) "\\fR"
        entry = substr(entry, 1, RSTART - 1)
    }
    printf ".TP\n\\fB%s\\fR%s\n", escaped(entry), argument
    if (text != "") print escaped(text)
    next
}

{
    sub(/^ +/, "")
    print escaped($0)
}

END {
    if (NR == 0) exit 1
    print ".SH FILES"
    printf ".TP\n\\fI%s/configs\\fR\n", escaped(share)
    print "Settings of complete runs, for \\fB\\-\\-config\\fR of the training programs"
    printf ".TP\n\\fI%s/scripts\\fR\nScripts that fetch data sets, convert weights and draw runs\n", escaped(share)
}
