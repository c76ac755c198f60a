# The table of a run: reads budget.toml, then lines of "phase seconds processor-seconds". With -v kind=warm|cold.
# The long run (kind=full) has none. A phase over its budget is marked in its row, and named again at the end.
function budget(line,    at) {
    at = match(line, kind " = [0-9]+")
    return at ? substr(line, RSTART + length(kind) + 3, RLENGTH) + 0 : 0
}
/^#|^\[|^$/ { next }
/^[a-z-]+ = \{/ { may[$1] = budget($0); next }
NF == 3 {
    if (!shown++) printf "%-20s %8s %10s %8s   (%s)\n", "phase", "seconds", "processor", "budget", kind
    over = ""
    if (kind == "full") over = ""
    else if (!($1 in may)) over = "   no budget: add it to tests/budget.toml"
    else if ($2 > may[$1]) {
        over = "   OVER by " ($2 - may[$1]) " s"
        late = late (late ? ", " : "") $1
    }
    printf "%-20s %8d %10d %8s%s\n", $1, $2, $3, ($1 in may && kind != "full" ? may[$1] : "-"), over
}
END {
    if (late) {
        print "################################################################################"
        print "WARNING: over budget (tests/budget.toml): " late
        print "################################################################################"
    }
}
