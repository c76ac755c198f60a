# shellcheck shell=bash
# The node lives in a network namespace of its own, joined to the host by a veth
# pair and two routes. Nothing of the host's own network is touched: kube-proxy's
# tables, the pods' bridge and all addresses vanish with the namespace.

# Decides has_node. A node needs root, namespaces and the packages of deps.sh.
probe_node() {
    has_node=0
    why_no_node=
    if ((!want_node)); then
        why_no_node="--no-node"
    elif ((EUID != 0)); then
        why_no_node="not root"
    elif ! unshare --net --mount --pid --fork true 2>/dev/null; then
        why_no_node="namespaces cannot be made here"
    elif ! has_node_programs && ! { "$here/deps.sh" node && has_node_programs; }; then
        why_no_node="programs are missing, see tests/cluster/deps.sh"
    else
        has_node=1
        return
    fi
    say "no node ($why_no_node): control plane only; pods stay Pending, and"
    say "logs, exec, attach, port-forward, cp and Services cannot be tried"
}

has_node_programs() {
    local name
    for name in containerd runc busybox nft iptables ip nsenter; do
        command -v "$name" >/dev/null || return 1
    done
    [[ -n $(cni_folder) ]]
}

# Distributions do not agree where the network plug-ins belong.
cni_folder() {
    local folder
    for folder in /usr/lib/cni /opt/cni/bin /usr/libexec/cni; do
        [[ ! -x $folder/bridge ]] || { echo "$folder"; return; }
    done
}

make_network() {
    ((has_node)) || return 0
    mkdir -p "$run_dir"
    echo "$state" >"$run_dir/owner"
    ip netns add "$tag"
    ip link add "$veth" type veth peer name eth0 netns "$tag"
    ip address add "$host_ip/32" dev "$veth"
    ip link set "$veth" up
    ip route add "$node_ip/32" dev "$veth" src "$host_ip"
    ip route add "$pods" via "$node_ip" src "$host_ip"
    ip route add "$services" via "$node_ip" src "$host_ip"
    ip -n "$tag" address add "$node_ip/32" dev eth0
    ip -n "$tag" link set lo up
    ip -n "$tag" link set eth0 up
    ip -n "$tag" route add "$host_ip/32" dev eth0 src "$node_ip"
    ip -n "$tag" route add default via "$host_ip" src "$node_ip"
}

remove_network() {
    if [[ -e /run/netns/$tag ]]; then
        ip netns delete "$tag"
    fi
    # The kernel removes the pair with the namespace, a moment later.
    if [[ -e /sys/class/net/$veth ]]; then
        ip link delete "$veth" 2>/dev/null || true
    fi
    rm -rf "$run_dir"
}
