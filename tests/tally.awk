# Adds up the closing lines of test runners ("test result: ok. 3 passed; 0 failed; 1 ignored; ...") over all files given
# and prints "passed failed skipped". A runner that says FAILED counts at least one failure.
function number(before,    at, left) {
    at = index($0, before)
    left = substr($0, 1, at - 1)
    return at && match(left, /[0-9]+ *$/) ? substr(left, RSTART) + 0 : 0
}
/^test result: / {
    passed += number(" passed")
    failed += number(" failed")
    skipped += number(" ignored")
    if (/FAILED/ && !number(" failed")) failed++
}
END { print passed + 0, failed + 0, skipped + 0 }
