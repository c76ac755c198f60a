#!/usr/bin/env bash
# Installs the Debian packages the cluster needs, only those missing, and unpacks
# an old kubectl beside the system. `deps.sh node`: only what a node needs;
# `deps.sh all PACKAGE...`: those packages too; `deps.sh only PACKAGE...`: nothing else.
set -euo pipefail

cache=${TOWLINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/towline}/cluster
node=(containerd runc containernetworking-plugins busybox-static nftables iproute2 iptables)
more=(buildah)

say() { printf '%s\n' "$*" >&2; }

present() { dpkg-query --show --showformat '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }

main() {
    local wanted=("${node[@]}") missing=() name
    if [[ ${1:-all} == all ]]; then
        wanted+=("${more[@]}" "${@:2}")
    elif [[ $1 == only ]]; then
        wanted=("${@:2}")
    fi
    if ! command -v dpkg-query >/dev/null; then
        say "not a Debian system: install by hand what provides ${wanted[*]}"
        return 1
    fi
    for name in "${wanted[@]}"; do
        present "$name" || missing+=("$name")
    done
    if ((${#missing[@]})); then
        install_packages "${missing[@]}"
    fi
    if [[ ${1:-all} == all ]]; then
        old_kubectl
    fi
}

install_packages() {
    if ((EUID != 0)); then
        say "missing, and only root can install: $*"
        return 1
    fi
    say "installing $* ..."
    export DEBIAN_FRONTEND=noninteractive
    quietly apt-get update
    # By the runlevel services of packages are not started (invoke-rc.d): tests run their programs themselves.
    RUNLEVEL=1 quietly apt-get install --yes --no-install-recommends -o DPkg::Lock::Timeout=300 "$@"
}

quietly() {
    local log
    log=$(mktemp)
    "$@" >"$log" 2>&1 </dev/null || { tail -n 20 "$log" >&2; rm "$log"; return 1; }
    rm "$log"
}

# kubectl 1.20 speaks only SPDY and is what long-lived systems still carry.
old_kubectl() {
    local work target=$cache/kubectl-1.20/bin
    [[ ! -x $target/kubectl-1.20 ]] || return 0
    say "fetching kubectl 1.20 ..."
    work=$(mktemp -d)
    (
        cd "$work"
        quietly apt-get download kubernetes-client
        dpkg --extract kubernetes-client_*.deb unpacked
        mkdir -p "$target"
        cp unpacked/usr/bin/kubectl "$target/kubectl-1.20"
    )
    rm -r "$work"
}

main "$@"
