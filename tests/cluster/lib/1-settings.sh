# shellcheck shell=bash
# What a cluster is made from: folders, ports, addresses. All of it follows from
# the state folder and the port base, so that clusters can stand side by side.

state=${CLUSTER_STATE:-$here/../../target/cluster}
want_node=${CLUSTER_NODE:-1}
cache=${TOWLINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/towline}/cluster

say() { printf '%s\n' "$*" >&2; }
fail() { say "cluster: $*"; exit 1; }

settings() {
    local recorded_base
    absolute_state
    recorded_base=$(recorded port_base)
    wanted_base=${CLUSTER_PORT_BASE:-${recorded_base:-16440}}
    apiserver_flags=${CLUSTER_APISERVER_FLAGS:-}
    has_node=$(recorded has_node)
    has_node=${has_node:-0}
    node_dir=$state/node
    admin=$state/admin.kubeconfig
    addresses "${recorded_base:-$wanted_base}"
}

absolute_state() {
    mkdir -p "$(dirname "$state")"
    state=$(cd "$(dirname "$state")" && pwd)/$(basename "$state")
}

addresses() {
    port_base=$1
    local number=$(((port_base - 16000) / 10))
    if ((port_base % 10 || number < 0 || number > 255)); then
        fail "CLUSTER_PORT_BASE must be a multiple of 10 from 16000 to 18550, not $port_base"
    fi
    port_api=$port_base
    port_etcd=$((port_base + 1))
    port_etcd_peer=$((port_base + 2))
    port_controllers=$((port_base + 3))
    port_scheduler=$((port_base + 4))

    # One /24 of the range for benchmarks (RFC 2544), which no real network uses.
    local net=198.18.$number
    host_ip=$net.1
    node_ip=$net.2
    services=$net.64/26
    service_ip=$net.65
    pods=$net.128/25
    tag=towline-$port_base
    # A proxy for the way out (modules, packages) is not for these.
    export NO_PROXY=${NO_PROXY:+$NO_PROXY,}127.0.0.1,$net.0/24
    export no_proxy=$NO_PROXY

    veth=twl$port_base
    run_dir=/run/$tag
    containerd_socket=$run_dir/containerd.sock
    cgroup=/towline-cluster-$port_base
}

# A cluster that runs knows its port base; `down` and `env` need not be told.
recorded() { sed -n "s/^$1=//p" "$state/settings" 2>/dev/null || true; }

# `up` starts anew when any of these changed.
fingerprint() {
    printf 'port_base=%s\nuser=%s\n' "$wanted_base" "$EUID"
    printf 'want_node=%s\nhas_node=%s\n' "$want_node" "$has_node"
    printf 'apiserver_flags=%s\nversion=%s\n' "$apiserver_flags" "$(version_of kubernetes)"
}

# The settings are read below the lock: another `up` may be about to record them.
with_lock() {
    absolute_state
    exec 9>"$state.lock"
    flock -w 1200 9 || fail "another command holds $state.lock"
    settings
    "$@"
}

# `down` deletes in the state folder, so it must be one of ours.
check_state_folder() {
    if [[ ! -e $state/settings && -n $(find "$state" -mindepth 1 -maxdepth 1 ! -name logs 2>/dev/null) ]]; then
        fail "$state holds something else than a cluster"
    fi
}

check_addresses() {
    local port
    for port in $port_api $port_etcd $port_etcd_peer $port_controllers $port_scheduler; do
        if ss -Hltn "sport = :$port" 2>/dev/null | grep -q .; then
            fail "port $port is taken: set CLUSTER_PORT_BASE, now $port_base"
        fi
    done
    if [[ -s $run_dir/owner || -e /sys/class/net/$veth ]]; then
        fail "$veth belongs to $(cat "$run_dir/owner" 2>/dev/null || echo a stranger): set CLUSTER_PORT_BASE, now $port_base"
    fi
}

# The one that this state folder has already, else the first whose ports and device are unused.
free_base() {
    local base port
    settings
    base=$(recorded port_base)
    if [[ $base ]]; then
        echo "$base"
        return
    fi
    for ((base = ${1:-16440}; base <= 18550; base += 10)); do
        [[ ! -e /sys/class/net/twl$base && ! -e /run/towline-$base ]] || continue
        for ((port = base; port < base + 5; port++)); do
            ss -Hltn "sport = :$port" 2>/dev/null | grep -q . && continue 2
        done
        echo "$base"
        return
    done
    fail "every port base from 16440 to 18550 is in use"
}

owns_addresses() { [[ $(cat "$run_dir/owner" 2>/dev/null) == "$state" ]]; }
