# The failed tests of a runner's log, each with the first lines of its message, so that they stand at the end of a long
# run. Variable `lines`: how many of each (4 without it).
BEGIN { most = lines ? lines : 4 }
/^---- .* ----$/ { name = $2; left = most; print "failed: " name; next }
/^(failures:|test result: )/ { left = 0 }
left && NF { print "    " substr($0, 1, 300); left-- }
