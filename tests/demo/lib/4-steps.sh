# shellcheck shell=bash
# The walk. Each step is printed as it would be typed, with its answer and its time.

# How much of an answer is shown.
lines_shown=12

# step TITLE EXPECTED-CODE COMMAND... : a step passes when COMMAND ends with EXPECTED-CODE. A function is shown by what
# it sets in $shown.
step() {
    local label=$1 expected=$2 begin code=0
    shift 2
    steps=$((steps + 1))
    shown=
    begin=$(now)
    "$@" >"$out/answer" 2>&1 || code=$?
    if [[ $1 == as ]]; then
        shown="kubectl$(typed "${@:3}")    # as $2"
    fi
    printf '%s$ %s%s\n' "$bold" "$(cat "$out/shown" 2>/dev/null || echo "$shown")" "$plain"
    rm -f "$out/shown"
    head -n "$lines_shown" "$out/answer" | cut -c 1-240 | sed 's/^/    /'
    if (($(wc -l <"$out/answer") > lines_shown)); then
        say "    ... ($(wc -l <"$out/answer") lines)"
    fi
    if ((code == expected)); then
        passed=$((passed + 1))
        printf '%s    %s: ok, %s%s\n' "$dim" "$label" "$(seconds_since "$begin")" "$plain"
    else
        printf '    %s: FAILED after %s: exit code %s, expected %s\n' "$label" "$(seconds_since "$begin")" "$code" "$expected"
    fi
}

# Arguments as they would be typed.
typed() {
    local word
    for word in "$@"; do
        if [[ $word == *[[:space:]\;\$\"]* ]]; then
            word="'$word'"
        fi
        printf ' %s' "$word"
    done
}

show() { printf '%s\n' "$*" >"$out/shown"; }

needs_pods() {
    if ((has_node)); then
        return 0
    fi
    skipped+=("$1")
    return 1
}

walk() {
    local carrier=$1
    title "carrier $carrier"
    start_agent "$carrier"
    step "get" 0 as admin get nodes,namespaces
    step "apply" 0 as admin apply --namespace "$namespace" --filename "$(manifest)"
    if needs_pods "logs, exec, cp and port-forward over $carrier"; then
        step "wait" 0 as admin wait --namespace "$namespace" --for=condition=Ready --timeout=60s pod/web pod/counter
        step "logs -f" 0 follow_logs
        step "exec" 7 as admin exec --namespace "$namespace" web -- sh -c 'echo "hello from $(hostname)"; exit 7'
        step "exec with input" 0 exec_with_input
        step "cp there" 0 copy_there
        step "cp back" 0 copy_back
        step "port-forward" 0 forward_port
    fi
    step "watch" 0 watch_change
    step "delete" 0 as admin delete --namespace "$namespace" --filename "$(manifest)" --now
}

walk_forbidden() {
    title "who may not"
    step "viewer reads" 0 as viewer get pods,configmaps --namespace "$namespace"
    step "viewer may not read secrets" 0 refused 'cannot list resource "secrets"' viewer get secrets --namespace kube-system
    step "stranger has no grant" 0 refused 'forbidden' stranger get pods --namespace "$namespace"
}

# From nothing to kubectl with towline and kubectl alone, and back: the cluster becomes a resource that gets its own
# identity. Where the agents' pods cannot be had, what would be installed is shown.
walk_resources() {
    title "from nothing to kubectl, and back"
    local url ca id options
    url=$(jq -r .url "$out/ready.json")
    ca=$(jq -r .ca "$out/ready.json")
    export TOWLINE_CONFIG_DIR=$out/state/accounts
    (umask 077 && jq -r .clientSecret "$out/ready.json" >"$out/state/owner.secret")
    step "login" 0 typed_as towline login "$url" --ca "$ca" --service-principal \
        --username "$(jq -r .clientId "$out/ready.json")" --secret-file "$out/state/owner.secret"
    step "group" 0 typed_as towline group create --name edge --location local
    if [[ ! $in_cluster ]]; then
        step "connect" 0 typed_as towline connect -n shop -g edge --kube-config "$admin_kubeconfig" --dry-run
        skipped+=("towline connect with pods of the agents")
        return
    fi
    load_image
    mapfile -t options < <(connect_options)
    step "connect" 0 typed_as towline connect -n shop -g edge --kube-config "$admin_kubeconfig" --namespace towline-shop "${options[@]}"
    step "list" 0 typed_as towline list
    step "role" 0 typed_as towline role assignment create --assignee admin --role "Azure Arc Enabled Kubernetes Cluster User Role" -g edge -n shop
    id=$(towline show -n shop -g edge --query id -o tsv 2>"$out/logs/show.log")
    step "kubeconfig" 0 typed_as towline kubeconfig --server "$url" --ca "$ca" --cluster "$id" --user admin \
        --password-file "$out/state/users/admin.password" --file "$out/shop.kubeconfig"
    step "kubectl" 0 as shop get pods --namespace towline-shop
    walk_guard --server "$url" --ca "$ca" --cluster "$id" --user admin --password-file "$out/state/users/admin.password"
    walk_gitops
    walk_extensions
    walk_upgrade
    step "delete" 0 typed_as towline delete -n shop -g edge --kube-config "$admin_kubeconfig" --yes
    step "nothing is left" 1 namespace_is_gone
}

namespace_is_gone() {
    show "kubectl get namespace towline-shop    # not through the tunnel, must be gone"
    direct get namespace towline-shop
}

# A command as it is typed.
typed_as() {
    show "$(typed "$@" | sed 's/^ //')"
    "$@"
}

manifest() {
    cat >"$out/files/demo.yaml" <<END
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: blue}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: web
      image: $image
      command: [sh, -c, "mkdir -p /www && echo hello through the tunnel >/www/index.html && exec httpd -f -p 8080 -h /www"]
      readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: counter}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  containers:
    - {name: counter, image: $image, command: [sh, -c, "sleep 2; for i in 1 2 3 4 5; do echo line \$i; sleep 0.3; done; sleep 5"]}
END
    echo target/demo/files/demo.yaml
}

# refused TEXT USER ARGUMENTS... : passes when kubectl fails and says TEXT.
refused() {
    local text=$1 user=$2 answer
    shift 2
    show "kubectl$(typed "$@")    # as $user, must be refused"
    if answer=$(as "$user" "$@" 2>&1); then
        echo "$answer"
        return 1
    fi
    echo "$answer"
    grep -qi -- "$text" <<<"$answer"
}

# Follows until the fifth line has come, which is written after the following has begun.
follow_logs() {
    show "kubectl logs --namespace $namespace --follow counter    # as admin"
    timeout 20 bash -c 'while read -r line; do echo "$line"; [[ $line != "line 5" ]] || exit 0; done; exit 1' \
        < <(exec timeout 20 "$kubectl" --kubeconfig "$out/admin.kubeconfig" logs --namespace "$namespace" --follow counter)
}

exec_with_input() {
    show "echo Hello | kubectl exec --namespace $namespace --stdin web -- tr a-z A-Z    # as admin"
    local answer
    answer=$(echo Hello | as admin exec --namespace "$namespace" --stdin web -- tr a-z A-Z)
    echo "$answer"
    [[ $answer == HELLO ]]
}

copy_there() {
    show "kubectl cp big $namespace/web:/tmp/big && kubectl exec --namespace $namespace web -- sha256sum /tmp/big    # 16 MiB, as admin"
    [[ -s $out/files/big ]] || head -c 16777216 /dev/urandom >"$out/files/big"
    as admin cp --namespace "$namespace" "$out/files/big" web:/tmp/big
    local wanted got
    wanted=$(sha256sum <"$out/files/big")
    got=$(as admin exec --namespace "$namespace" web -- sha256sum /tmp/big)
    echo "$got"
    [[ ${wanted%% *} == "${got%% *}" ]]
}

copy_back() {
    show "kubectl cp $namespace/web:/tmp/big copy && cmp big copy    # as admin"
    rm -f "$out/files/copy"
    as admin cp --namespace "$namespace" web:/tmp/big "$out/files/copy"
    cmp "$out/files/big" "$out/files/copy" && echo "equal"
}

forward_port() {
    show "kubectl port-forward --namespace $namespace pod/web :8080 & curl http://127.0.0.1:<port>/    # as admin"
    local pid port code=0
    # Emptied before it is waited for: the last carrier's port is in it.
    : >"$out/files/forward"
    "$kubectl" --kubeconfig "$out/admin.kubeconfig" port-forward --namespace "$namespace" pod/web :8080 \
        >"$out/files/forward" 2>&1 &
    pid=$!
    await 15 "the port" grep -q Forwarding "$out/files/forward" || code=1
    port=$(sed -n 's/^Forwarding from 127.0.0.1:\([0-9]*\) .*/\1/p' "$out/files/forward")
    if ((!code)); then
        local call
        for call in 1 2 3; do
            curl --silent --show-error --fail --max-time 10 "http://127.0.0.1:$port/" || code=$?
        done
    fi
    cat "$out/files/forward"
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    return "$code"
}

# The change is made once the watch has shown what was there before.
watch_change() {
    show "kubectl get configmap settings --namespace $namespace --watch & kubectl annotate configmap settings --namespace $namespace seen=yes    # as admin"
    local pid code=0
    : >"$out/files/watch"
    "$kubectl" --kubeconfig "$out/admin.kubeconfig" get configmap settings --namespace "$namespace" --watch \
        -o 'jsonpath={.metadata.name} seen={.metadata.annotations.seen}{"\n"}' >"$out/files/watch" 2>&1 &
    pid=$!
    await 15 "the watch to begin" grep -q '^settings' "$out/files/watch" || code=1
    as admin annotate configmap settings --namespace "$namespace" --overwrite seen=yes || code=1
    await 15 "the change" grep -q 'seen=yes' "$out/files/watch" || code=1
    cat "$out/files/watch"
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    return "$code"
}

stay() {
    # The end that a user asks for is no failure.
    trap 'finish; exit' INT TERM
    start_agent "${CARRIER:-auto}"
    title "up"
    say "kubeconfigs, all through the tunnel:"
    local user
    for user in admin viewer stranger; do
        say "    export KUBECONFIG=$out/$user.kubeconfig"
    done
    say "$passed of $steps steps passed. Logs are in target/demo/logs."
    say "Ctrl+C here, or tests/demo/demo stop elsewhere, ends everything."
    while ! gone "$gateway_pid"; do
        sleep 1 &
        wait $! || true
    done
    fail "the gateway has ended"
}
