# shellcheck shell=bash
# A cluster follows a repository: what is pushed is applied, what somebody changes is put right (docs/gitops.md). The
# repository is served by an sshd of this demo's own.

# Whether Flux's programs are there, or are to be built: that takes ten minutes.
has_flux() {
    local program
    [[ ! ${DEMO_GITOPS:-} ]] || return 0
    for program in helm source-controller kustomize-controller; do
        [[ -x $("$root/tests/cluster/cluster" program "$program" 2>/dev/null) ]] || return
    done
}

# Before the gateway, which serves the catalogue. Charts of the agents themselves come later (8-upgrade.sh).
prepare_catalogue() {
    # What is in it runs as pods.
    if [[ ! $in_cluster ]]; then
        skipped+=("upgrades, GitOps and extensions")
        return
    fi
    title "catalogue"
    if has_flux; then
        gitops=1
        prepare_images
    else
        say "GitOps and extensions are not tried: Flux is not built here. DEMO_GITOPS=1 builds it, once, in ten minutes"
    fi
    catalogue=$out/catalogue
    rm -rf "$catalogue"
    mkdir -p "$catalogue"
    make_catalogue >"$out/logs/catalogue.log" 2>&1 || fail "the catalogue cannot be made: $(tail -n 3 "$out/logs/catalogue.log")"
    gateway_options=(--set "api.catalogue_dir=\"$catalogue/index\"")
}

prepare_images() {
    local image
    "$root/tests/cluster/deps.sh" all git openssh-client openssh-server
    for image in extension-manager source-controller kustomize-controller; do
        "$root/docker/build" image "$image" >/dev/null
        "$root/tests/cluster/cluster" --state "$cluster_state" load-image "$root/target/image/$image.tar"
    done
    flux_chart=$("$root/docker/build" chart microsoft.flux)
}

make_catalogue() (
    set -e
    cd "$catalogue"
    towline catalogue init --catalogue index --key signing.key
    if [[ $gitops ]]; then
        towline catalogue add "$flux_chart" --catalogue index --type microsoft.flux --train Stable --release-namespace flux-system
        add_charts
    fi
    towline catalogue sign --catalogue index --key signing.key --expires 90d
)

connect_options() {
    echo --guard
    [[ ! $gitops ]] || printf '%s\n' --extensions --catalogue-key "$catalogue/signing.key.pub"
}

# Whose key is in `readers` may fetch from the one repository, and do nothing else.
start_git() {
    git=$out/git
    rm -rf "$git"
    mkdir -p "$git"
    (
        umask 077
        cd "$git" || exit
        ssh-keygen -q -t ed25519 -N '' -f host
        touch readers
        git init -q --bare --initial-branch main fleet.git
        git clone -q fleet.git work 2>/dev/null
        cat >config <<END
ListenAddress $host_ip
Port $1
HostKey $git/host
PidFile $git/pid
AuthorizedKeysFile $git/readers
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
DisableForwarding yes
ForceCommand git-upload-pack $git/fleet.git
END
    )
    mkdir -p /run/sshd
    "$(command -v sshd || echo /usr/sbin/sshd)" -f "$git/config" -E "$out/logs/sshd.log"
    printf '[%s]:%s %s\n' "$host_ip" "$1" "$(<"$git/host.pub")" >"$git/known_hosts"
}

free_port() {
    local port
    for ((port = 20022; port < 20100; port++)); do
        ss -Hltn "sport = :$port" | grep -q . || { echo "$port"; return; }
    done
    fail "no port from 20022 to 20099 is free for sshd"
}

push_greeting() {
    show "git push    # apps/greeting.yaml says $1"
    (
        cd "$git/work" || exit
        mkdir -p apps
        cat >apps/greeting.yaml <<END
apiVersion: v1
kind: ConfigMap
metadata: {name: greeting, namespace: fleet}
data: {text: $1}
END
        git add apps
        git -c user.name=demo -c user.email=demo@example.org commit -q -m "Say $1"
        git push -q origin HEAD:main
        git log --oneline -n 1
    )
}

walk_gitops() {
    [[ $gitops ]] || return 0
    title "GitOps"
    local port flux=(-g edge -c shop -n fleet)
    port=$(free_port)
    start_git "$port"
    step "push" 0 push_greeting hello
    step "flux create" 0 typed_as towline flux create "${flux[@]}" --url "ssh://$(id -un)@$host_ip:$port/fleet.git" --branch main \
        --known-hosts-file "$git/known_hosts" --interval 10s --namespace fleet -k name=apps path=./apps prune=true sync_interval=10s retry_interval=10s
    step "the cluster's key may read" 0 admit_cluster
    step "compliant" 0 becomes_compliant
    step "push again" 0 push_greeting "hello-again"
    step "applied" 0 becomes "hello-again"
    step "drift" 0 drift
    step "repaired" 0 becomes "hello-again"
    step "flux show" 0 typed_as towline flux show "${flux[@]}"
    step "flux delete" 0 typed_as towline flux delete "${flux[@]}" --yes
    step "extension delete" 0 typed_as towline extension delete -g edge -c shop -n flux --yes
    end_process sshd "$(cat "$git/pid")"
}

admit_cluster() {
    show "towline flux show -g edge -c shop -n fleet --query properties.repositoryPublicKey -o tsv >>readers"
    await 60 "the public key" read_key
    cat "$git/readers"
}

read_key() {
    towline flux show -g edge -c shop -n fleet --query properties.repositoryPublicKey -o tsv >"$git/key" && grep -q '^ssh-' "$git/key" && cp "$git/key" "$git/readers"
}

becomes_compliant() {
    show "towline flux show -g edge -c shop -n fleet --query properties.complianceState -o tsv    # until it complies"
    await 180 "the configuration to comply" complies
    towline flux show -g edge -c shop -n fleet --query '[properties.complianceState, properties.sourceSyncedCommitId]' -o tsv
}

complies() { towline flux show -g edge -c shop -n fleet --query properties.complianceState -o tsv | grep -qx Compliant; }

drift() {
    show "kubectl patch configmap greeting    # somebody changes it in the cluster"
    direct -n fleet patch configmap greeting --type merge -p '{"data": {"text": "by hand"}}'
}

becomes() {
    show "kubectl get configmap greeting    # until it says $1"
    await 90 "what is in the repository" says "$1"
    direct -n fleet get configmap greeting -o 'jsonpath={.data.text}{"\n"}'
}

says() { [[ $(direct -n fleet get configmap greeting -o 'jsonpath={.data.text}') == "$1" ]]; }
