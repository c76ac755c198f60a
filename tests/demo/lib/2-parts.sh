# shellcheck shell=bash
# Cluster, gateway and agent: started in this order, ended in the other.

# Quick to build, and what the tests run; PROFILE chooses another one.
export PROFILE=${PROFILE:-ci}

build_programs() {
    title "programs"
    need_commands
    if [[ ${KUBECONFIG:-} ]]; then
        "$root/tests/cluster/cluster" build kubectl
    else
        build_cluster_beside
    fi
    PATH=${TOWLINE_BIN_DIR:-$("$root/docker/build" binaries)}:$PATH
}

# Those of the cluster, while ours are built: each alone leaves a processor idle at its end. `up` waits for them, and
# says what is wrong if they cannot be built.
build_cluster_beside() {
    local programs=(kubectl etcd kube-apiserver kube-controller-manager kube-scheduler)
    if ((EUID == 0)); then
        programs+=(kubelet kube-proxy)
    fi
    say "the programs of the cluster are built beside ours; target/demo/logs/cluster-build.log"
    setsid "$root/tests/cluster/cluster" build "${programs[@]}" >"$out/logs/cluster-build.log" 2>&1 8>&- </dev/null &
    cluster_build=$!
}

# As root what is missing is installed, else it is named.
need_commands() {
    if ((EUID == 0)) && command -v dpkg-query >/dev/null; then
        "$root/tests/cluster/deps.sh" all ca-certificates curl gcc iproute2 jq libc6-dev openssl procps
    fi
    local name missing=()
    for name in cargo go curl gcc jq openssl ss; do
        command -v "$name" >/dev/null || missing+=("$name")
    done
    ((${#missing[@]} == 0)) || fail "needs ${missing[*]}"
}

# Direct access to the cluster, not through the tunnel: rights, pods of the agent, clean-up.
direct() { "$kubectl" --kubeconfig "$admin_kubeconfig" "$@"; }

# Whether the cluster of KUBECONFIG is there; when not, why.
answers() {
    local said
    if said=$(timeout 10 "$kubectl" get --raw /readyz 2>&1); then
        return 0
    fi
    say "KUBECONFIG is set, but its cluster does not answer: ${said:-no answer in 10 s}"
    say "a cluster is brought up here instead"
    return 1
}

# What the nodes have already needs no registry.
image_there() {
    local known
    known=$(direct get nodes -o 'jsonpath={range .items[*].status.images[*]}{.names[*]}{"\n"}{end}' |
        tr ' ' '\n' | grep -E '(^|/)busybox:' | head -n 1 || true)
    echo "${DEMO_IMAGE:-${known:-busybox:1.36}}"
}

start_cluster() {
    title "cluster"
    local begin
    begin=$(now)
    kubectl=$("$root/tests/cluster/cluster" program kubectl)
    admin_kubeconfig=
    if [[ ${KUBECONFIG:-} ]] && answers; then
        # One file, whatever list of files KUBECONFIG was.
        (umask 077 && "$kubectl" config view --raw --minify --flatten >"$out/direct.kubeconfig")
        admin_kubeconfig=$out/direct.kubeconfig
        image=$(image_there)
        has_node=$(direct get nodes -o name | grep -c . || true)
        host_ip=127.0.0.1
        say "using the cluster of KUBECONFIG, $(direct config view -o 'jsonpath={.clusters[0].cluster.server}')"
        say "pods are of the image $image (DEMO_IMAGE)"
    else
        own_cluster=1
        CLUSTER_PORT_BASE=${CLUSTER_PORT_BASE:-$("$root/tests/cluster/cluster" --state "$cluster_state" free-base)}
        export CLUSTER_PORT_BASE
        "$root/tests/cluster/cluster" --state "$cluster_state" up
        local facts
        facts=$("$root/tests/cluster/cluster" --state "$cluster_state" env)
        fact() { sed -n "s/^$1=//p" <<<"$facts"; }
        admin_kubeconfig=$(fact KUBECONFIG)
        has_node=$(fact CLUSTER_HAS_NODE)
        image=$(fact CLUSTER_IMAGE)
        host_ip=$(fact CLUSTER_HOST_IP)
        host_ip=${host_ip:-127.0.0.1}
    fi
    unset KUBECONFIG
    # The agent runs in the cluster when that is ours: its image can be loaded there and its pods reach this machine.
    # With programs from elsewhere there is no image of them.
    in_cluster=
    if [[ $own_cluster && ! ${TOWLINE_BIN_DIR:-} ]] && ((has_node)); then
        in_cluster=1
    fi
    say "cluster is ready after $(seconds_since "$begin")"
    if ((!has_node)); then
        say "it has no node: steps that need pods are not tried"
    fi
}

start_gateway() {
    title "gateway"
    local begin
    begin=$(now)
    rm -rf "$out/state"
    run_apart gateway "$out/ready.json" \
        towline dev --state "$out/state" --listen "$host_ip:0" --cluster demo --json "${gateway_options[@]}"
    gateway_pid=$(cat "$out/gateway.pid")
    await 30 "the gateway" gateway_answered || true
    [[ -s $out/ready.json ]] || fail "the gateway does not start: $(tail -n 5 "$out/logs/gateway.log")"
    url=$(jq -r .clusters[0].url "$out/ready.json")
    say "towline dev listens at $(jq -r .url "$out/ready.json") after $(seconds_since "$begin")"
}

gateway_answered() { [[ -s $out/ready.json ]] || gone "$gateway_pid"; }

# run_apart NAME OUTPUT COMMAND... : in a session of its own, so that Ctrl+C reaches only this script, which ends it.
run_apart() {
    local name=$1 output=$2
    shift 2
    # What an earlier one left must not be taken for what is waited for.
    rm -f "$out/$name.pid" "$output"
    (
        exec 8>&- </dev/null >"$output" 2>"$out/logs/$name.log"
        echo "$BASHPID" >"$out/$name.pid"
        exec setsid "$@"
    ) &
    disown
    await 5 "$name" test -s "$out/$name.pid"
}

# The agent on one carrier, as a process here with the kubeconfig: so the first answer waits for no image.
# `towline connect` installs agents as pods at the end of the walk.
start_agent() {
    local carrier=$1 begin
    begin=$(now)
    end_process agent "$agent_pid"
    run_apart agent "$out/logs/agent.out" \
        towline-agent run --config "$(jq -r .clusters[0].agent_config "$out/ready.json")" --carrier "$carrier" \
        --kubeconfig "$admin_kubeconfig"
    agent_pid=$(cat "$out/agent.pid")
    await 30 "the tunnel" as admin get --raw /version || { explain; return 1; }
    say "the agent is connected over $carrier after $(seconds_since "$begin")"
}

load_image() {
    "$root/docker/build" image agent >/dev/null
    "$root/tests/cluster/cluster" --state "$cluster_state" load-image "$root/target/image/agent.tar"
}

end_process() {
    local name=$1 pid=$2
    [[ $pid ]] || return 0
    kill -TERM "$pid" 2>/dev/null || true
    await 15 "$name to end" gone "$pid" || kill -KILL "$pid" 2>/dev/null || true
    rm -f "$out/$name.pid"
}

explain() {
    local log
    for log in "$out"/logs/{gateway,agent}.log; do
        [[ -s $log ]] || continue
        say "--- end of $log"
        tail -n 15 "$log"
    done
}

tear_down() {
    title "tidying up"
    if [[ $cluster_build ]]; then
        kill -TERM -- "-$cluster_build" 2>/dev/null || true
    fi
    if [[ $gave_rights && ! $own_cluster ]]; then
        say "removing namespace $namespace and the rights of admin from the cluster of KUBECONFIG"
        remove_traces || say "they could not be removed"
    fi
    rm -f "$out/direct.kubeconfig"
    end_process apiserver "$apiserver_pid"
    end_process agent "$agent_pid"
    end_process gateway "$gateway_pid"
    if [[ $own_cluster ]]; then
        "$root/tests/cluster/cluster" --state "$cluster_state" down >>"$out/logs/cluster.log" 2>&1 || true
    fi
    rm -f "$out/pid"
}
