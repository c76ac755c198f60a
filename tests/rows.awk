# Reads logs of test runs and prints a table: for each row of the feature list that a test is named after (r4_..., z9_...), how
# many of its tests passed, failed and were skipped. Rows that -v wanted="R1 R2 ..." names and no test is named after are listed.
function row(name,    parts, count, last) {
    count = split(name, parts, "::")
    last = parts[count]
    # A matrix adds what it varies behind the name.
    while (count > 1 && last !~ /^[a-z][0-9]+_/) last = parts[--count]
    if (last !~ /^[a-z][0-9]+_/) return ""
    sub(/_.*/, "", last)
    return toupper(last)
}
function rank(id) { return sprintf("%s%04d", substr(id, 1, 1), substr(id, 2)) }
/^test .* \.\.\. (ok|FAILED|ignored)/ {
    id = row($2)
    if (id == "") next
    outcome = $4
    sub(/,$/, "", outcome)
    seen[id] = 1
    tally[id, outcome]++
}
END {
    count = split(wanted, list, " ")
    for (at = 1; at <= count; at++) if (!(list[at] in seen)) none = none " " list[at]
    total = 0
    for (id in seen) ids[++total] = id
    for (one = 2; one <= total; one++) {
        id = ids[one]
        for (at = one - 1; at > 0 && rank(ids[at]) > rank(id); at--) ids[at + 1] = ids[at]
        ids[at + 1] = id
    }
    print "row   passed failed skipped"
    for (at = 1; at <= total; at++)
        printf "%-5s %6d %6d %7d\n", ids[at], tally[ids[at], "ok"], tally[ids[at], "FAILED"], tally[ids[at], "ignored"]
    if (none != "") print "no test is named after:" none
}
