# shellcheck shell=bash
# containerd, kubelet and kube-proxy, in mount and pid namespaces below one holder
# process: when the holder dies, the kernel ends every process of the node, every
# pod, and every mount. Only the cgroups are left to remove.

# For each log that is followed kubelet takes an instance of inotify, beside those
# that it and others have all the time. With five clusters none of the usual 128 are
# left, and kubelet says so in the midst of the log: "failed to create fsnotify
# watcher: too many open files".
allow_watchers() {
    local file=/proc/sys/fs/inotify/max_user_instances most=1024
    [[ ! -w $file ]] || (($(<"$file") >= most)) || echo "$most" >"$file"
}

start_containerd() {
    ((has_node)) || return 0
    allow_watchers
    mkdir -p "$node_dir"/{containerd,cni,etc-cni,kubelet,log} /run/containerd /var/lib/{cni,kubelet}
    containerd_config >"$node_dir/containerd.toml"
    cni_config >"$node_dir/etc-cni/10-towline.conflist"
    make_cgroups
    start node nsenter "--net=/run/netns/$tag" \
        unshare --mount --propagation private --pid --mount-proc --kill-child \
        bash "$here/lib/holder" "$node_dir"
    await 10 "the node's namespaces" test -e "$node_dir/ready"
    identity "$(holder_pid)" >"$state/pids/holder"
    in_node containerd containerd --config "$node_dir/containerd.toml"
    make_images
    await 30 "containerd" ctr_node version
    load_images "$node_dir"/images/*.tar 2>>"$state/logs/images.log"
}

start_node() {
    ((has_node)) || return 0
    kubelet_config >"$node_dir/kubelet.yaml"
    kube_proxy_config >"$node_dir/kube-proxy.yaml"
    in_node kubelet "$(program kubelet)" --config "$node_dir/kubelet.yaml" \
        --kubeconfig "$state/pki/kubelet.kubeconfig" \
        --hostname-override node-1 --node-ip "$node_ip"
    in_node kube-proxy "$(program kube-proxy)" --config "$node_dir/kube-proxy.yaml" \
        --hostname-override node-1
}

in_node() {
    local name=$1
    shift
    start "$name" nsenter --target "$(pid_of holder)" --mount --net --pid "$@"
}

holder_pid() {
    local outer
    outer=$(pid_of node)
    tr -d ' ' <"/proc/$outer/task/$outer/children"
}

# A group can be removed a moment after its last process has ended.
remove_cgroups() {
    local group deadline=$((SECONDS + 10))
    for group in /sys/fs/cgroup"$cgroup" /sys/fs/cgroup/*"$cgroup"; do
        while [[ -d $group ]]; do
            find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
            ((SECONDS < deadline)) || fail "$group is still in use"
        done
    done
}

# The kubelet does not make its own root group; on cgroup v1 there is one in
# each hierarchy.
make_cgroups() {
    local controller
    if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
        mkdir -p "/sys/fs/cgroup$cgroup"
        for controller in cpu cpuset io memory pids; do
            echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
            echo "+$controller" >"/sys/fs/cgroup$cgroup/cgroup.subtree_control" 2>/dev/null || true
        done
        return
    fi
    for controller in /sys/fs/cgroup/*/; do
        mkdir -p "$controller$cgroup"
        if [[ -e $controller$cgroup/cpuset.cpus ]]; then
            cat "$controller/cpuset.cpus" >"$controller$cgroup/cpuset.cpus"
            cat "$controller/cpuset.mems" >"$controller$cgroup/cpuset.mems"
        fi
    done
}

await_ready() {
    # Pods are refused until their namespace has its service account.
    await 60 "the default service account" kubectl get serviceaccount default
    ((has_node)) || return 0
    await 60 "the node" node_takes_pods
    await 30 "the kubernetes Service" service_answers
}

node_takes_pods() {
    [[ $(kubectl get node node-1 -o \
        'jsonpath={.status.conditions[?(@.type=="Ready")].status}{.spec.taints}') == True ]]
}

service_answers() { timeout 1 bash -c "exec 3<>/dev/tcp/$service_ip/443"; }

write_env() {
    cat >"$state/env.part" <<END
CLUSTER_STATE=$state
CLUSTER_HAS_NODE=$has_node
CLUSTER_VERSION=$(version_of kubernetes)
CLUSTER_API=$(api_url)
CLUSTER_CA=$state/pki/ca.crt
KUBECONFIG=$admin
CLUSTER_ETCD=http://127.0.0.1:$port_etcd
CLUSTER_KUBECTL=$(program kubectl)
CLUSTER_KUBECTL_OLD=$(old_kubectl)
CLUSTER_HELM=$(program helm)
CLUSTER_SAMPLE_APISERVER=$(program sample-apiserver)
CLUSTER_SERVICES=$services
END
    if ((has_node)); then
        cat >>"$state/env.part" <<END
CLUSTER_HOST_IP=$host_ip
CLUSTER_NODE_IP=$node_ip
CLUSTER_PODS=$pods
CLUSTER_NETNS=$tag
CLUSTER_CONTAINERD=$containerd_socket
CLUSTER_IMAGE=towline.test/busybox:1
END
    fi
    mv "$state/env.part" "$state/env"
}

print_env() {
    { [[ -e $state/env ]] && all_alive; } || fail "no cluster is up in $state"
    cat "$state/env"
}
