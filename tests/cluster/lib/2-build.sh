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

# The folder of a program in the cache. A controller of changed sources is not taken for an unchanged one.
kept_in() {
    local changed=
    [[ $1 != kustomize-controller ]] || changed=-local-files
    [[ $1 != source-controller ]] || changed=-bounded-files
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
    if [[ $(folder_of "$(family_of "${names[0]}")") == "$here/flux" ]]; then
        change_modules "$part.changed" || exit
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

# change_modules FOLDER : makes FOLDER/go.mod, which is the one here but for the modules that are changed for Flux.
change_modules() {
    local folder=$1
    export GOMODCACHE=$cache/go/modules
    rm -rf "$folder"
    mkdir -p "$folder"
    cp go.mod go.sum "$folder/"
    fetch_nothing "$folder" && bound_files "$folder"
}

# change_module FOLDER MODULE NAME : has FOLDER/go.mod take a copy of the module in FOLDER/NAME, which may be changed.
change_module() {
    local folder=$1 module=$2 name=$3 source
    go mod download -modcacherw "$module" || return
    source=$(go list -mod=readonly -modcacherw -m -f '{{.Dir}}' "$module") || return
    cp -r "$source" "$folder/$name" && chmod -R u+w "$folder/$name" || return
    go mod edit "-replace=$module=$folder/$name" "$folder/go.mod"
}

# fetch_nothing FOLDER : kustomize fetches no files by http:// and https://, and no Git repositories. It has no option for
# that. Whoever writes to a repository could otherwise read what the pod of kustomize-controller reaches, which includes
# the artifacts of all other repositories.
fetch_nothing() {
    local file=$1/kustomize/internal/loader/fileloader.go refusal
    change_module "$1" sigs.k8s.io/kustomize/api kustomize || return
    refusal='fmt.Errorf("%w: %q is not fetched: this kustomize-controller reads the files of its source alone", ErrHTTP, '
    sed -i -e "s|^\t\treturn fl\.httpClientGetContent(path)\$|\t\treturn nil, ${refusal}path)|" \
        -e "s|^\terr := cloner(repoSpec)\$|\terr := ${refusal}repoSpec.Raw())|" "$file"
    [[ $(grep -c 'is not fetched: ' "$file") == 2 ]] || fail "kustomize has changed: fetch_nothing does not find in it what it replaces"
}

# bound_files FOLDER : go-git refuses a file that is larger than a sixteenth of the memory of source-controller. It decodes
# each object of a repository in memory, several times over, and has no bound for it: one file could otherwise end the pod,
# again and again, and with it the sources of all others. The sizes are those in the heads of objects and of deltas.
bound_files() {
    local into=$1/go-git/plumbing/format/packfile
    change_module "$1" github.com/go-git/go-git/v5 go-git || return
    cat >"$into/bound.go" <<'END'
package packfile

import (
	"fmt"
	"runtime/debug"
)

var largest = uint64(debug.SetMemoryLimit(-1)) / 16

func bounded(size uint64) error {
	if size <= largest {
		return nil
	}
	return fmt.Errorf("a file of %d MiB is too large: source-controller takes files of at most %d MiB, a sixteenth of its memory", size>>20, largest>>20)
}
END
    sed -i -e '/^\th\.Type, h\.Length, err = s\.readObjectTypeAndLength()$/a\
\tif err == nil {\
\t\terr = bounded(uint64(h.Length))\
\t}' "$into/scanner.go"
    sed -i -e 's|^\treturn num, nil$|\treturn num, bounded(uint64(num))|' \
        -e 's|^\treturn num, input\[sz:\], nil$|\treturn num, input[sz:], bounded(uint64(num))|' "$into/patch_delta.go"
    [[ $(cat "$into/scanner.go" "$into/patch_delta.go" | grep -c 'bounded(uint64(') == 3 ]] ||
        fail "go-git has changed: bound_files does not find in it what it replaces"
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
