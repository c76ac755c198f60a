# shellcheck shell=bash
# The programs, built from Go modules into a cache outside the checkout. The
# versions stand in the go.mod files and nowhere else. etcd and helm are built in
# Kubernetes' own module, with what they share compiled once; `replace` there keeps
# Kubernetes at the versions that it was released with.

module_of() {
    case $1 in
        kubernetes) echo k8s.io/kubernetes ;;
        etcd) echo go.etcd.io/etcd/server/v3 ;;
        helm) echo helm.sh/helm/v4 ;;
        k9s) echo github.com/derailed/k9s ;;
        source-controller | kustomize-controller) echo "github.com/fluxcd/$1" ;;
    esac
}

family_of() {
    case $1 in
        etcd | helm | k9s | source-controller | kustomize-controller) echo "$1" ;;
        *) echo kubernetes ;;
    esac
}

package_of() {
    case $1 in
        kubectl | kubelet | kube-*) echo "k8s.io/kubernetes/cmd/$1" ;;
        sample-apiserver) echo k8s.io/sample-apiserver ;;
        etcd) echo go.etcd.io/etcd/server/v3 ;;
        helm) echo helm.sh/helm/v4/cmd/helm ;;
        k9s | source-controller | kustomize-controller) module_of "$1" ;;
        *) fail "no such program: $1" ;;
    esac
}

# Where the go.mod of a family is.
folder_of() {
    case $1 in
        k9s) echo "$here/k9s" ;;
        source-controller | kustomize-controller) echo "$here/flux" ;;
        *) echo "$here/kubernetes" ;;
    esac
}

version_of() {
    awk -v module="$(module_of "$1")" \
        '{ sub(/^require /, ""); sub(/^[ \t]+/, "") } $1 == module && $2 ~ /^v/ { print $2; exit }' "$(folder_of "$1")/go.mod"
}

# The folder of a program in the cache. The kustomize-controller of changed sources is not taken for an unchanged one.
kept_in() {
    local changed=
    [[ $1 != kustomize-controller ]] || changed=-local-files
    echo "$cache/$1-$(version_of "$1")$changed"
}

bin_dir_of() { echo "$(kept_in "$1")/bin"; }

# Where a program is; it need not be built yet. KUBEBUILDER_ASSETS is the
# convention of envtest for a folder with ready etcd, kube-apiserver, kubectl.
program() {
    if [[ -n ${KUBEBUILDER_ASSETS:-} && -x $KUBEBUILDER_ASSETS/$1 ]]; then
        echo "$KUBEBUILDER_ASSETS/$1"
    else
        echo "$(bin_dir_of "$(family_of "$1")")/$1"
    fi
}

# What is kept of a program's module beside the program.
share_of() { echo "$(kept_in "$1")/share"; }

old_kubectl() { echo "$cache/kubectl-1.20/bin/kubectl-1.20"; }

build_for_cluster() {
    local programs=(kubectl etcd kube-apiserver kube-controller-manager kube-scheduler)
    if ((has_node)); then
        programs+=(kubelet kube-proxy)
    fi
    build "${programs[@]}"
}

build() {
    local name
    if (($# == 0)); then
        set -- kubectl etcd kube-apiserver kube-controller-manager kube-scheduler \
            kubelet kube-proxy helm sample-apiserver flux
    fi
    local folder wanted=() missing
    for name in "$@"; do
        # Flux is two programs.
        if [[ $name == flux ]]; then wanted+=(source-controller kustomize-controller); else wanted+=("$name"); fi
    done
    for folder in kubernetes k9s flux; do
        missing=()
        for name in "${wanted[@]}"; do
            package_of "$name" >/dev/null
            [[ $(folder_of "$name") == "$here/$folder" && ! -x $(program "$name") ]] || continue
            missing+=("$name")
        done
        ((!${#missing[@]})) || build_together "${missing[@]}" || return
    done
    drop_go_caches
}

# Sources and objects of Kubernetes are ten gigabytes that nothing needs once the programs stand; a full disk fails what
# is built beside them.
drop_go_caches() (
    [[ -d $cache/go ]] || exit 0
    exec 8>"$cache/build.lock"
    # Who builds now drops them at its own end.
    flock -n 8 || exit 0
    rm -rf "$cache/go"
)

# Programs of one module by one call, which compiles what they share once and links one while it compiles for the next.
build_together() (
    check_go
    mkdir -p "$cache/go"
    exec 8>"$cache/build.lock"
    flock -n 8 || { say "waiting for another build"; flock 8; }
    names=()
    packages=()
    for name in "$@"; do
        [[ ! -x $(program "$name") ]] || continue
        names+=("$name")
        packages+=("$(package_of "$name")")
    done
    ((${#names[@]})) || exit 0

    say "building ${names[*]} ..."
    begin=$SECONDS
    part=$cache/part
    rm -rf "$part"
    mkdir -p "$part"
    cd "$(folder_of "$(family_of "${names[0]}")")" || exit
    changes=()
    if [[ " ${names[*]} " == *" kustomize-controller "* ]]; then
        fetch_nothing "$part.changed" || exit
        changes=("-modfile=$part.changed/go.mod")
    fi
    CGO_ENABLED=0 GOCACHE=$cache/go/build GOMODCACHE=$cache/go/modules go build \
        -mod=readonly -modcacherw -buildvcs=false -trimpath "${changes[@]}" \
        -ldflags "$(stamps "${names[@]}")" -o "$part/" "${packages[@]}" >&2 || exit
    for name in "${names[@]}"; do
        family=$(family_of "$name")
        keep_definitions "$family" || exit
        mkdir -p "$(bin_dir_of "$family")"
        mv "$part/$(built_as "$name")" "$(bin_dir_of "$family")/$name" || exit
    done
    rm -rf "$part" "$part.changed"
    say "built ${names[*]} in $((SECONDS - begin)) s"
)

# fetch_nothing FOLDER : makes FOLDER/go.mod, which is the one here but for a kustomize that fetches nothing: no files by
# http:// and https://, and no Git repositories. kustomize has no option for that. Whoever writes to a repository could
# otherwise read what the pod of kustomize-controller reaches, which includes the artifacts of all other repositories.
fetch_nothing() {
    local folder=$1 module=sigs.k8s.io/kustomize/api source file refusal
    export GOMODCACHE=$cache/go/modules
    go mod download -modcacherw "$module" || return
    source=$(go list -mod=readonly -modcacherw -m -f '{{.Dir}}' "$module") || return
    rm -rf "$folder"
    mkdir -p "$folder"
    cp -r "$source" "$folder/api" && chmod -R u+w "$folder/api" || return
    file=$folder/api/internal/loader/fileloader.go
    refusal='fmt.Errorf("%w: %q is not fetched: this kustomize-controller reads the files of its source alone", ErrHTTP, '
    sed -i -e "s|^\t\treturn fl\.httpClientGetContent(path)\$|\t\treturn nil, ${refusal}path)|" \
        -e "s|^\terr := cloner(repoSpec)\$|\terr := ${refusal}repoSpec.Raw())|" "$file"
    [[ $(grep -c 'is not fetched: ' "$file") == 2 ]] || fail "kustomize has changed: fetch_nothing does not find in it what it replaces"
    cp go.mod go.sum "$folder/"
    go mod edit "-replace=$module=$folder/api" "$folder/go.mod"
}

# The definitions of a Flux controller's resources, and its licence: docker/build packs them into the chart, when the
# sources are gone.
keep_definitions() {
    local module share
    module=$(module_of "$1")
    [[ $module == github.com/fluxcd/* ]] || return 0
    share=$(share_of "$1")
    module=$(GOMODCACHE=$cache/go/modules go list -mod=readonly -modcacherw -m -f '{{.Dir}}' "$module") || return
    mkdir -p "$share"
    install -m 644 "$module"/config/crd/bases/*.yaml "$module/LICENSE" "$share/"
}

# The name that go gives a program: the last part of its path that is no version.
built_as() {
    case $1 in
        etcd) echo server ;;
        *) echo "$1" ;;
    esac
}

# The API machinery of Kubernetes 1.36 serves a broken /openapi/v2 when built
# with Go 1.27, and then `kubectl apply` fails.
check_go() {
    command -v go >/dev/null || fail "building needs Go 1.26 (or set KUBEBUILDER_ASSETS)"
    case $(go env GOVERSION) in
        go1.26*) ;;
        *) export GOTOOLCHAIN=go1.26.0 ;;
    esac
}

# What programs say of themselves. Variables that a program does not have are passed over by the linker.
stamps() {
    local name family version done=
    printf -- '-s -w'
    for name in "$@"; do
        family=$(family_of "$name")
        [[ " $done" != *" $family "* ]] || continue
        done+="$family "
        version=$(version_of "$family")
        case $family in
            kubernetes)
                local numbers=${version#v}
                local minor=${numbers#*.}
                printf -- ' -X k8s.io/component-base/version.gitVersion=%s' "$version"
                printf -- ' -X k8s.io/component-base/version.gitMajor=%s' "${numbers%%.*}"
                printf -- ' -X k8s.io/component-base/version.gitMinor=%s' "${minor%%.*}"
                ;;
            helm) printf -- ' -X helm.sh/helm/v4/internal/version.version=%s' "$version" ;;
            k9s) printf -- ' -X github.com/derailed/k9s/cmd.version=%s' "$version" ;;
        esac
    done
}
