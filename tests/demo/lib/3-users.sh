# shellcheck shell=bash
# Who may do what: admin everything, viewer may read in one namespace, stranger has no grant at the gateway.

namespace=towline-demo

# as USER ARGUMENTS... : kubectl through the tunnel.
as() {
    local user=$1
    shift
    "$kubectl" --kubeconfig "$out/$user.kubeconfig" "$@"
}

# The name that the cluster knows a user by: the issuer's prefix and the user's own name.
name_of() { jq -r --arg user "$1" '.users[] | select(.name == $user) | .username // .name' "$out/ready.json"; }

give_rights() {
    reserve_namespace
    gave_rights=1
    direct create namespace "$namespace" >/dev/null
    direct label namespace "$namespace" towline.test/demo=yes >/dev/null
    direct create clusterrolebinding towline-demo-admin --clusterrole cluster-admin --user "$(name_of admin)" >/dev/null
    direct create rolebinding viewer --namespace "$namespace" --clusterrole view --user "$(name_of viewer)" >/dev/null
    say "admin is cluster-admin, viewer may view in namespace $namespace, stranger has no grant at the gateway"
}

# A demo that was killed may have left its own; what is somebody else's is not touched.
reserve_namespace() {
    local label
    label=$(direct get namespace "$namespace" --ignore-not-found -o 'jsonpath={.metadata.name} {.metadata.labels.towline\.test/demo}')
    case $label in
        '') direct delete clusterrolebinding towline-demo-admin --ignore-not-found >/dev/null ;;
        "$namespace yes") say "removing what an earlier demo left in the cluster" && remove_traces ;;
        *) fail "the cluster has a namespace $namespace that is not the demo's: it is not touched" ;;
    esac
}

remove_traces() {
    direct --request-timeout=60s delete clusterrolebinding towline-demo-admin --ignore-not-found >/dev/null &&
        direct --request-timeout=60s delete namespace "$namespace" --ignore-not-found --wait --timeout=60s >/dev/null
}

write_kubeconfigs() {
    local user
    for user in admin viewer stranger; do
        towline kubeconfig --state "$out/state" --cluster demo --user "$user" --file "$out/$user.kubeconfig" \
            >"$out/logs/kubeconfig.log" 2>&1 || fail "towline kubeconfig: $(cat "$out/logs/kubeconfig.log")"
        say "wrote target/demo/$user.kubeconfig"
    done
}
