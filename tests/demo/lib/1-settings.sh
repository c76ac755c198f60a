# shellcheck shell=bash
# What is shown, where files lie, and how a demo in another terminal is ended.

settings() {
    out=$root/target/demo
    cluster_state=$out/cluster
    mkdir -p "$out/logs" "$out/files"
    mode=${DEMO:-}
    if [[ ! $mode ]]; then
        mode=$([[ -t 0 && -t 1 ]] && echo stay || echo once)
    fi
    case $mode in
        once | stay) ;;
        *) fail "DEMO is once or stay, not $mode" ;;
    esac
    case ${CARRIER:-} in
        '') carriers=(quic h2 websocket) ;;
        quic | h2 | websocket) carriers=("$CARRIER") ;;
        *) fail "CARRIER is quic, h2 or websocket, not $CARRIER" ;;
    esac
    steps=0
    passed=0
    skipped=()
    own_cluster=
    gave_rights=
    gateway_pid=
    agent_pid=
    apiserver_pid=
    cluster_build=
    gateway_options=()
    gitops=
    bold=$([[ -t 1 ]] && printf '\e[1m' || true)
    plain=$([[ -t 1 ]] && printf '\e[0m' || true)
    dim=$([[ -t 1 ]] && printf '\e[2m' || true)
}

say() { printf '%s\n' "$*"; }
title() { printf '\n%s== %s%s\n' "${bold:-}" "$*" "${plain:-}"; }
fail() { printf 'demo: %s\n' "$*" >&2; exit 1; }

# One demo per checkout. The number of the process tells `stop` whom to ask.
take_lock() {
    exec 8>"$out/lock"
    flock -n 8 || fail "a demo runs already (process $(cat "$out/pid" 2>/dev/null)); end it with: tests/demo/demo stop"
    echo $$ >"$out/pid"
}

stop_other() {
    settings
    exec 8>"$out/lock"
    if ! flock -n 8; then
        kill -TERM "$(cat "$out/pid")"
        say "asked the demo to end"
        flock -w 60 8 || fail "it does not end"
    fi
    end_leftovers
}

# What a killed demo left: programs that still run from this checkout's state, and its cluster.
end_leftovers() {
    local name pid
    for name in gateway agent apiserver; do
        pid=$(cat "$out/$name.pid" 2>/dev/null) || continue
        if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF "$out"; then
            kill -TERM "$pid" 2>/dev/null || true
            await 10 "the old $name to end" gone "$pid" || kill -KILL "$pid" 2>/dev/null || true
        fi
        rm -f "$out/$name.pid"
    done
    if [[ -e $cluster_state/settings ]]; then
        "$root/tests/cluster/cluster" --state "$cluster_state" down
    fi
    # A copy of somebody's credentials. What is in that cluster is removed by the next demo there.
    rm -f "$out/direct.kubeconfig"
}

gone() { ! kill -0 "$1" 2>/dev/null; }

# await SECONDS WHAT COMMAND... : polls; says what it gave up on.
await() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS >= deadline)); then
            say "gave up waiting for $what"
            return 1
        fi
        sleep 0.1
    done
}

# Milliseconds since 1970.
now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

seconds_since() {
    local took=$(($(now) - $1))
    printf '%d.%02d s' $((took / 1000)) $((took % 1000 / 10))
}
