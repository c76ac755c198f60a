# shellcheck shell=bash
# etcd, kube-apiserver, controller-manager and scheduler, as processes of the host.

kubectl() { "$(program kubectl)" --kubeconfig "$admin" "$@"; }

# Durability is worth nothing here and fsync costs seconds.
start_etcd() {
    start etcd "$(program etcd)" --name test --data-dir "$state/etcd" --unsafe-no-fsync \
        --listen-client-urls "http://127.0.0.1:$port_etcd" \
        --advertise-client-urls "http://127.0.0.1:$port_etcd" \
        --listen-peer-urls "http://127.0.0.1:$port_etcd_peer" \
        --initial-advertise-peer-urls "http://127.0.0.1:$port_etcd_peer" \
        --initial-cluster "test=http://127.0.0.1:$port_etcd_peer" \
        --log-level warn
}

start_apiserver() {
    local extra=() line=()
    read -ra extra <<<"$apiserver_flags"
    mapfile -t line < <(apiserver_line "${extra[@]}")
    start kube-apiserver "${line[@]}"
}

# apiserver_line FLAG... : the program and its flags, a line each.
apiserver_line() {
    local pki=$state/pki flag
    program kube-apiserver
    while read -r flag; do
        overridden "$flag" "$@" || echo "$flag"
    done < <(apiserver_defaults)
    ((!$#)) || printf '%s\n' "$@"
}

# Another apiserver of the running cluster, with a port and flags of its own: what is kept is the same behind both. It
# leaves the address that pods reach an apiserver by to the first one.
another_apiserver() {
    local port=$1
    shift
    apiserver_line "--secure-port=$port" --endpoint-reconciler-type=none "$@"
}

# The caller's flag replaces ours of the same name; an authorization file, all
# of ours about authorization.
overridden() {
    local name=${1%%=*} flag
    shift
    for flag in "$@"; do
        [[ ${flag%%=*} != "$name" ]] || return 0
        [[ ${flag%%=*} != --authorization-config || $name != --authorization-mode ]] || return 0
    done
    return 1
}

apiserver_defaults() {
    cat <<END
--etcd-servers=http://127.0.0.1:$port_etcd
--bind-address=$(if ((has_node)); then echo "$host_ip"; else echo 127.0.0.1; fi)
--secure-port=$port_api
--advertise-address=$host_ip
--endpoint-reconciler-type=$(if ((has_node)); then echo lease; else echo none; fi)
--tls-cert-file=$pki/apiserver.crt
--tls-private-key-file=$pki/apiserver.key
--client-ca-file=$pki/ca.crt
--authorization-mode=Node,RBAC
--enable-admission-plugins=NodeRestriction
--allow-privileged=true
--service-cluster-ip-range=$services
--service-account-issuer=https://kubernetes.default.svc.cluster.local
--service-account-key-file=$pki/service-accounts.pub
--service-account-signing-key-file=$pki/service-accounts.key
--kubelet-client-certificate=$pki/apiserver-kubelet.crt
--kubelet-client-key=$pki/apiserver-kubelet.key
--kubelet-certificate-authority=$pki/ca.crt
--kubelet-preferred-address-types=InternalIP,Hostname
--requestheader-client-ca-file=$pki/front-proxy-ca.crt
--requestheader-allowed-names=front-proxy-client
--requestheader-username-headers=X-Remote-User
--requestheader-group-headers=X-Remote-Group
--requestheader-extra-headers-prefix=X-Remote-Extra-
--proxy-client-cert-file=$pki/front-proxy.crt
--proxy-client-key-file=$pki/front-proxy.key
--enable-aggregator-routing=true
END
}

await_apiserver() { await 90 "the apiserver" kubectl get --raw /readyz; }

start_controllers() {
    local pki=$state/pki
    # Without these two nothing asks for a cloud or for pod ranges per node; an
    # unknown name here makes the controller-manager exit.
    # With the usual rate its own start takes four seconds longer.
    start kube-controller-manager "$(program kube-controller-manager)" \
        --kubeconfig "$pki/controllers.kubeconfig" \
        --authentication-kubeconfig "$pki/controllers.kubeconfig" \
        --authorization-kubeconfig "$pki/controllers.kubeconfig" \
        --bind-address 127.0.0.1 --secure-port "$port_controllers" \
        --controllers '*,-nodeipam,-cloud-node-lifecycle' --leader-elect=false \
        --use-service-account-credentials --kube-api-qps 500 --kube-api-burst 1000 \
        --service-account-private-key-file "$pki/service-accounts.key" --root-ca-file "$pki/ca.crt" \
        --cluster-signing-cert-file "$pki/ca.crt" --cluster-signing-key-file "$pki/ca.key"
    start kube-scheduler "$(program kube-scheduler)" \
        --kubeconfig "$pki/scheduler.kubeconfig" \
        --authentication-kubeconfig "$pki/scheduler.kubeconfig" \
        --authorization-kubeconfig "$pki/scheduler.kubeconfig" \
        --bind-address 127.0.0.1 --secure-port "$port_scheduler" --leader-elect=false
}
