# shellcheck shell=bash
# The configuration files of the node's programs, with what small virtual
# machines do not grant switched off.

# No CAP_SYS_RESOURCE: runc may not lower an oom score, and says only that it
# "can't get final child's PID from pipe". Overlay cannot lie on overlay.
containerd_config() {
    local snapshotter=overlayfs
    if [[ $(stat --file-system --format %T "$node_dir") == overlayfs ]]; then
        snapshotter=native
    fi
    cat <<END
version = 2
root = "$node_dir/containerd"
state = "/run/containerd/state"
[grpc]
  address = "$containerd_socket"
[plugins."io.containerd.internal.v1.opt"]
  path = "$node_dir/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "towline.test/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$snapshotter"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$(cni_folder)"
    conf_dir = "$node_dir/etc-cni"
END
}

cni_config() {
    cat <<END
{"cniVersion": "0.4.0", "name": "towline", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}},
  {"type": "loopback"}]}
END
}

# Disk pressure is the machine's business: a test cluster must not evict its pods
# because somebody's build filled the disk.
kubelet_config() {
    cat <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $node_ip
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $state/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $state/pki/kubelet-serving.crt
tlsPrivateKeyFile: $state/pki/kubelet-serving.key
containerRuntimeEndpoint: unix://$containerd_socket
cgroupDriver: cgroupfs
cgroupRoot: $cgroup
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
evictionHard: {memory.available: 50Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}
imageGCHighThresholdPercent: 100
imageMinimumGCAge: 24h
oomScoreAdj: 0
maxPods: 110
resolvConf: ""
podLogsDir: /var/log/pods
syncFrequency: 10s
fileCheckFrequency: 1m
httpCheckFrequency: 1m
END
}

kube_proxy_config() {
    cat <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $state/pki/kube-proxy.kubeconfig}
clusterCIDR: $pods
oomScoreAdj: 0
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
END
}
