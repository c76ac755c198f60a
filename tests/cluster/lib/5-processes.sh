# shellcheck shell=bash
# Starting, watching and ending processes. A pid file says which process was
# meant (pid, start time, boot), so that no stranger with the same pid is hit.

# start NAME COMMAND... : in a session of its own, output in logs/NAME.log. The
# process writes its pid file before it becomes COMMAND, so a kill of this script
# at any moment leaves no process without one.
start() {
    local name=$1
    shift
    (
        exec 9>&- </dev/null >>"$state/logs/$name.log" 2>&1
        # Renamed, because others look at the folder all the time.
        identity "$BASHPID" >"$state/pids/.$name"
        mv "$state/pids/.$name" "$state/pids/$name"
        exec setsid "$@"
    ) &
    while [[ ! -e $state/pids/$name ]] && kill -0 $! 2>/dev/null; do
        sleep 0.01
    done
    disown $! 2>/dev/null || true
}

# Fields are counted after the name in parentheses, which may hold spaces.
identity() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    read -ra stat <<<"${stat##*) }"
    # A killed program is a zombie at once, while its other threads still hold
    # its ports.
    if [[ ${stat[0]} == Z ]] && (($(find "/proc/$1/task" -mindepth 1 -maxdepth 1 2>/dev/null | wc -l) < 2)); then
        return 1
    fi
    echo "$1 ${stat[19]} $(cat /proc/sys/kernel/random/boot_id)"
}

alive() {
    local meant
    meant=$(cat "$state/pids/$1" 2>/dev/null) || return 1
    [[ -n $meant && $(identity "${meant%% *}") == "$meant" ]]
}

pid_of() { cut -d' ' -f1 "$state/pids/$1"; }

names() { ls "$state/pids" 2>/dev/null || true; }

# The node's processes end with their pid namespace. The control plane holds
# nothing worth a slow farewell.
stop_all() {
    local name deadline=$((SECONDS + 20))
    for name in $(names); do
        if alive "$name"; then
            kill -KILL "$(pid_of "$name")" 2>/dev/null || true
        fi
    done
    for name in $(names); do
        while alive "$name"; do
            ((SECONDS < deadline)) || fail "$name (pid $(pid_of "$name")) does not end"
            sleep 0.05
        done
        rm -f "$state/pids/$name"
    done
}

all_alive() {
    local name
    for name in $(names); do
        alive "$name" || { dead=$name; return 1; }
    done
}

# await SECONDS WHAT COMMAND... : polls, and gives up at once when a process died.
await() {
    local deadline=$((SECONDS + $1)) what=$2 dead=
    shift 2
    until "$@" >/dev/null 2>&1; do
        all_alive || fail "$dead ended while waiting for $what"
        ((SECONDS < deadline)) || fail "gave up waiting for $what"
        sleep 0.1
    done
}

explain_failure() {
    local code=$? log
    ((code)) || return 0
    for log in "$state"/logs/*.log; do
        say "--- end of $log"
        tail -n 12 "$log" >&2
    done
    say "cluster: up failed; \`cluster down\` or the next \`up\` cleans what is left"
}

healthy() {
    [[ -e $state/env && -e $state/settings && "$(fingerprint)" == "$(cat "$state/settings")" ]] &&
        all_alive && kubectl get --raw /readyz >/dev/null 2>&1
}

status() {
    local name
    [[ -n $(names) ]] || { echo "down"; return 1; }
    for name in $(names); do
        if alive "$name"; then
            echo "$name: running, pid $(pid_of "$name")"
        else
            echo "$name: ended, see $state/logs/$name.log"
        fi
    done
    if healthy; then
        echo "ready"
    else
        echo "not ready"
        return 1
    fi
}
