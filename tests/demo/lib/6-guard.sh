# shellcheck shell=bash
# Guard: an apiserver asks the agents whose a token is, and kubectl goes to it without the tunnel (docs/guard.md). It is
# another apiserver of the demo's cluster, so that the one that all else goes to is not started anew.

# walk_guard OPTION... : the options by which towline finds the cluster and the user.
walk_guard() {
    local files=$out/guard file port server line=()
    rm -rf "$files"
    (umask 077 && mkdir "$files")
    for file in guard-authn-webhook.yaml guard-authz-webhook.yaml; do
        guard_file "$file" >"$files/$file"
    done
    # Nothing else of the cluster has the last port of its base.
    port=$((CLUSTER_PORT_BASE + 9))
    server=https://$host_ip:$port
    mapfile -t line < <("$root/tests/cluster/cluster" --state "$cluster_state" another-apiserver "$port" \
        --authentication-token-webhook-config-file="$files/guard-authn-webhook.yaml" \
        --authentication-token-webhook-version=v1 --authorization-mode=Node,RBAC,Webhook \
        --authorization-webhook-config-file="$files/guard-authz-webhook.yaml" --authorization-webhook-version=v1)
    run_apart apiserver "$out/logs/apiserver.out" "${line[@]}"
    apiserver_pid=$(cat "$out/apiserver.pid")
    await 60 "an apiserver that asks guard" direct --server "$server" get --raw /readyz || true
    step "kubeconfig straight at the apiserver" 0 typed_as towline kubeconfig "$@" --direct "$server" \
        --certificate-authority "$cluster_state/pki/ca.crt" --file "$out/straight.kubeconfig"
    step "kubectl without the tunnel" 0 as straight auth whoami
    step "its rights are the cluster's own" 0 as straight get pods --namespace towline-shop
    end_process apiserver "$apiserver_pid"
    apiserver_pid=
}

guard_file() {
    direct --namespace kube-system get secret towline-guard-manifests -o "go-template={{index .data \"$1\" | base64decode}}"
}
