# Reads logs of test runs and prints a table: for each row of docs/features.md that a test is named after (r4_...,
# z9_...), how many of its tests passed, failed and were skipped. Tests of attacks (attack_th4_..., docs/threats.md) are
# not counted here. Rows that -v wanted="R1 R2 ..." names and no test is named after are listed.
# The rows that a name begins with: one, or several (c1_c2_..., r6_and_r7_...).
function rows(name, found,    parts, count, last, many) {
    count = split(name, parts, "::")
    last = parts[count]
    # A matrix adds what it varies behind the name.
    while (count > 1 && last !~ /^[a-z][0-9]+_/) last = parts[--count]
    many = 0
    while (match(last, /^(and_)?[a-z][0-9]+_/)) {
        found[++many] = toupper(substr(last, 1, RLENGTH - 1))
        sub(/^AND_/, "", found[many])
        last = substr(last, RLENGTH + 1)
    }
    return many
}
function rank(id) { return sprintf("%s%04d", substr(id, 1, 1), substr(id, 2)) }
/^test .* \.\.\. (ok|FAILED|ignored)/ {
    outcome = $4
    sub(/,$/, "", outcome)
    for (at = rows($2, of); at > 0; at--) {
        seen[of[at]] = 1
        tally[of[at], outcome]++
    }
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
