# shellcheck shell=bash
# Images without a registry: docker archives made here from Debian's static busybox.

load_images() {
    local tar
    [[ -S $containerd_socket ]] || fail "no node runs here that could take images"
    (($#)) || fail "load-image needs at least one TAR"
    for tar in "$@"; do
        ctr_node image import "$tar" >&2
    done
}

ctr_node() { ctr --address "$containerd_socket" --namespace k8s.io "$@"; }

# The test image and the pause image share their only layer.
make_images() (
    work=$node_dir/images
    root=$work/root
    mkdir -p "$root"/{bin,etc,root,tmp,var}
    chmod 1777 "$root/tmp"
    cp "$(command -v busybox)" "$root/bin/busybox"
    for applet in $(busybox --list); do
        [[ $applet == busybox ]] || ln -s busybox "$root/bin/$applet"
    done
    echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
    echo 'root:x:0:' >"$root/etc/group"
    tar --create --file "$work/layer.tar" --directory "$root" --owner 0 --group 0 --sort name --mtime @0 .

    image "$work" towline.test/busybox:1 '"/bin/sh"'
    image "$work" towline.test/pause:1 '"/bin/sh", "-c", "trap \"exit 0\" INT TERM; while :; do sleep 3600 & wait $!; done"'
    rm -r "$root" "$work/layer.tar"
)

# image FOLDER NAME COMMAND : writes FOLDER/NAME.tar around FOLDER/layer.tar
image() {
    local work=$1 out=$1/out file
    file=$work/$(basename "${2%:*}").tar
    mkdir "$out"
    ln "$work/layer.tar" "$out/layer.tar"
    cat >"$out/config.json" <<END
{"architecture": "$(go_architecture)", "os": "linux",
 "config": {"Cmd": [$3], "Env": ["PATH=/bin"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$(sha256sum "$work/layer.tar" | cut -d' ' -f1)"]}}
END
    echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"$2\"], \"Layers\": [\"layer.tar\"]}]" >"$out/manifest.json"
    tar --create --file "$file" --directory "$out" manifest.json config.json layer.tar
    rm -r "$out"
}

go_architecture() {
    case $(uname -m) in
        x86_64) echo amd64 ;;
        aarch64) echo arm64 ;;
        *) uname -m ;;
    esac
}
