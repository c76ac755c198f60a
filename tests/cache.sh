# shellcheck shell=bash
# What one run of the tests keeps for the next, outside the checkout, so that a fresh clone does not begin from nothing:
# compiled dependencies, and the environments of Python and Node. Each has the hash of what it was made from in its
# name, and whatever is wrong with it, it is made anew. The programs of the cluster (tests/cluster) lie beside it.
# Nothing of the workspace's own crates is ever kept: a run tests what it compiled itself.

cache=${TOWLINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/towline}
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
host=$(rustc -vV | sed -n 's/^host: //p')
# Tests, lints and programs have the same profile and flags, those of docker/build: so they share their dependencies.
profile=ci
flags=$'-C\x1ftarget-feature=+crt-static'
# Older ones go: a kept set of dependencies is more than a gigabyte.
kept_sets=3
kept_days=14
# Nothing is kept where less is free.
room_kib=$((6 * 1024 * 1024))

hash_of() { sha256sum | cut -c 1-16; }

compiler_key() { rustc -vV | hash_of; }

# Everything that decides which dependencies are compiled, and how. Cargo looks at all of it again by itself.
dependencies_key() {
    { rustc -vV && cat Cargo.lock Cargo.toml */Cargo.toml proto/*/Cargo.toml tests/cache.sh && echo "$flags"; } | hash_of
}

# Names of the workspace's packages, which alone have no source in the lock file.
members() { awk '/^name = /{ name = $3 } /^source = /{ name = "" } /^$/{ if (name) print name; name = "" } END { if (name) print name }' Cargo.lock | tr -d '"'; }

# The set made from just this, else the newest of this compiler, of which cargo takes what fits.
newest_set() {
    local compiler key
    compiler=$(compiler_key)
    key=$(dependencies_key)
    ls -t "$cache/dependencies-$compiler-$key"-*.tar 2>/dev/null || ls -t "$cache/dependencies-$compiler"-*.tar 2>/dev/null
}

has_dependencies() { [[ -d $target/$host/$profile/deps ]]; }

# Unpacks beside, and only what is whole.
take_dependencies() {
    local file set sum
    if has_dependencies; then
        echo "the target folder has its own"
        return
    fi
    file=$(newest_set | head -n 1)
    if [[ ! $file ]]; then
        echo "none are kept for this compiler"
        return
    fi
    # Open from here on, whoever removes it.
    exec {set}<"$file" || return 0
    sum=$(sha256sum <"/dev/fd/$set" | cut -c 1-64)
    rm -rf "$target/taken"
    mkdir -p "$target/taken"
    if [[ $file != *-"$sum".tar ]] || ! tar --extract --file "/dev/fd/$set" --directory "$target/taken" ||
        ! [[ -d $target/taken/$profile && -d $target/taken/$host/$profile ]]; then
        echo "$file is damaged: it goes, and dependencies are compiled"
        rm -rf "$file" "$target/taken"
        return
    fi
    exec {set}<&-
    touch --no-create "$file"
    mkdir -p "$target/$host"
    rm -rf "${target:?}/$profile"
    mv "$target/taken/$profile" "$target/$profile" && mv "$target/taken/$host/$profile" "$target/$host/$profile" || return
    rm -rf "$target/taken"
    echo "taken from $file"
}

# Files of dependencies, by their names: what is of the workspace, and every program, is left out.
files_of_dependencies() {
    local ours
    ours=$(members | sed 's/-/[-_]/g' | paste -sd '|')
    (
        cd "$target" || exit
        find "$profile" "$host/$profile" '(' -path '*/build/*' -o -path '*/.fingerprint/*' ')'
        find "$profile" "$host/$profile" -path '*/deps/*' -regex '.*\.\(rlib\|rmeta\|so\|d\)'
    ) | grep -Ev "/(\.fingerprint|build|deps)/(lib)?($ours|towline[-_a-z]*)-[0-9a-f]{16}(/|\.|$)"
}

# After everything was compiled.
keep_dependencies() {
    local key part sum free
    key=$(compiler_key)-$(dependencies_key)
    if compgen -G "$cache/dependencies-$key-*.tar" >/dev/null; then
        echo "kept already"
        return
    fi
    mkdir -p "$cache"
    free=$(df --output=avail -k "$cache" | tail -n 1)
    if ((free < room_kib)); then
        echo "less than 6 GiB are free: they are not kept"
        return
    fi
    part=$(mktemp "$cache/part.XXXXXX") || return
    # The format that keeps parts of a second: cargo compares times.
    if ! files_of_dependencies | tar --create --format=posix --no-recursion --directory "$target" --files-from - --file "$part"; then
        rm -f "$part"
        return 1
    fi
    sum=$(sha256sum "$part" | cut -c 1-64)
    mv "$part" "$cache/dependencies-$key-$sum.tar"
    ls -t "$cache"/dependencies-*.tar | tail -n +$((kept_sets + 1)) | xargs -r rm -f
    find "$cache" -maxdepth 1 -name 'part.*' -mmin +120 -delete
    echo "kept: $(du -h "$cache/dependencies-$key-$sum.tar")"
}

python_folder() { echo "$cache/python-$({ python3 -c 'import sys; print(sys.version, sys.executable)' && cat tests/requirements.txt; } | hash_of)"; }
node_folder() { echo "$cache/node-$({ node --version && cat tests/package.json; } | hash_of)"; }

make_python() {
    python3 -m venv "$1" && "$1/bin/pip" install --quiet --disable-pip-version-check -r tests/requirements.txt
}
try_python() { "$1/bin/python" -c 'import kubernetes, msal, azure.cli.core, azure.mgmt.hybridkubernetes, schemathesis'; }

make_node() { npm install --silent --no-audit --no-fund --no-package-lock --install-links --prefix "$1" ./tests; }
try_node() { (cd "$1" && node --input-type=module -e 'await import("oidc-provider")'); }

# environment KIND FOLDER : makes it unless it is there and works; one maker at a time.
environment() {
    local kind=$1 folder=$2 lock other
    mkdir -p "$cache"
    exec {lock}>"$folder.lock"
    flock "$lock"
    if [[ -e $folder/complete ]] && "try_$kind" "$folder"; then
        touch "$folder/complete"
        echo "kept: $folder"
        return
    fi
    rm -rf "$folder"
    mkdir -p "$folder"
    "make_$kind" "$folder" && "try_$kind" "$folder" || return
    touch "$folder/complete"
    # Those that nobody has used for long.
    find "$cache" -mindepth 2 -maxdepth 2 -path "$cache/$kind-*/complete" -mtime "+$kept_days" | while read -r other; do
        rm -rf "${other%/complete}" "${other%/complete}.lock"
    done
}

python_client() { environment python "$(python_folder)"; }
node_client() { environment node "$(node_folder)"; }
