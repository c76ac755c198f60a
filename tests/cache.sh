# shellcheck shell=bash
# What one run of the tests keeps for the next, outside the checkout, so that a fresh clone does not begin from nothing: the
# environments of Python and Node. Each has the hash of what it was made from in its name, and one that does not work is
# made anew. The programs of the cluster (tests/cluster) lie beside it.

cache=${TOWLINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/towline}
kept_days=14

hash_of() { sha256sum | cut -c 1-16; }

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
