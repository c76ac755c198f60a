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
    direct create namespace "$namespace" >/dev/null
    direct create clusterrolebinding towline-demo-admin --clusterrole cluster-admin --user "$(name_of admin)" >/dev/null
    direct create rolebinding viewer --namespace "$namespace" --clusterrole view --user "$(name_of viewer)" >/dev/null
    say "admin is cluster-admin, viewer may view in namespace $namespace, stranger has no grant at the gateway"
}

write_kubeconfigs() {
    local user
    for user in admin viewer stranger; do
        towline kubeconfig --state "$out/state" --cluster demo --user "$user" --file "$out/$user.kubeconfig" \
            >"$out/logs/kubeconfig.log" 2>&1 || fail "towline kubeconfig: $(cat "$out/logs/kubeconfig.log")"
        say "wrote target/demo/$user.kubeconfig"
    done
}
