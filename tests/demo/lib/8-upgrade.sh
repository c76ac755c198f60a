# shellcheck shell=bash
# An upgrade: the agents follow a version of the signed catalogue by themselves (docs/upgrades.md). There is no later
# version than this one, so this very program passes for the next.

walk_upgrade() {
    title "an upgrade of the agents"
    local version
    version=$(sed -n 's/^appVersion: *//p' "$root/docker/chart/towline-agent/Chart.yaml")
    version=${version%.*}.$((${version##*.} + 1))
    load_as "$version" agent
    [[ ! $gitops ]] || load_as "$version" extension-manager
    shorten_watch
    step "a version is published" 0 publish_agents "$version"
    step "the agents have it" 0 agents_become "$version"
    step "kubectl" 0 as shop get deployments --namespace towline-shop -o wide
}

# load_as VERSION NAME : an image as another version, told by its environment what it is.
load_as() (
    set -e
    work=$out/files/image-$2
    rm -rf "$work"
    mkdir -p "$work"
    cd "$work"
    tar --extract --file "$root/target/image/$2.tar"
    config=$(jq -r '.[0].Config' manifest.json)
    jq -c --arg version "TOWLINE_TEST_VERSION=$1" '.config.Env = ((.config.Env // []) + [$version])' "$config" >config.new
    name=$(sha256sum config.new | cut -d ' ' -f 1).json
    mv config.new "$name"
    [[ $config == "$name" ]] || rm "$config"
    jq -c --arg config "$name" --arg version "$1" \
        '.[0].Config = $config | .[0].RepoTags[0] |= sub(":[^:]*$"; ":" + $version)' manifest.json >manifest.new
    mv manifest.new manifest.json
    rm -f repositories
    tar --create --file "../image-$2.tar" .
    "$root/tests/cluster/cluster" --state "$cluster_state" load-image "../image-$2.tar"
    rm -rf "$work" "../image-$2.tar"
) >>"$out/logs/images.log" 2>&1

# New pods are watched for three minutes each time; a demo has less.
shorten_watch() {
    direct --namespace towline-shop get configmap upgrader -o json |
        jq '.data["agent.toml"] |= gsub("window = \"[^\"]*\""; "window = \"5s\"")' | direct replace --filename - >>"$out/logs/upgrade.log"
    direct --namespace towline-shop rollout restart deployment upgrader >>"$out/logs/upgrade.log"
    direct --namespace towline-shop rollout status deployment upgrader --timeout 60s >>"$out/logs/upgrade.log"
}

publish_agents() {
    local chart=$catalogue/towline-agent
    show "towline catalogue add towline-agent-$1.tgz --catalogue index --type towline.agent --train Stable --release-namespace towline && towline catalogue sign --catalogue index --key signing.key"
    rm -rf "$chart"
    cp -r "$root/docker/chart/towline-agent" "$chart"
    sed -i -E "s/^(version|appVersion): .*/\1: $1/" "$chart/Chart.yaml"
    tar --create --gzip --file "$chart-$1.tgz" --owner 0 --group 0 --directory "$catalogue" towline-agent
    (
        cd "$catalogue" || exit
        towline catalogue add "towline-agent-$1.tgz" --catalogue index --type towline.agent --train Stable --release-namespace towline &&
            towline catalogue sign --catalogue index --key signing.key --expires 90d
    )
}

agents_become() {
    show "towline show -n shop -g edge --query properties.agentVersion -o tsv    # until the agents have upgraded themselves"
    await 300 "the agents to have version $1" have_upgraded "$1" || upgrade_state
    towline show -n shop -g edge --query properties.agentVersion -o tsv | grep -x "$1"
}

# The upgrader is the last to be replaced; then the upgrade has come to its end.
have_upgraded() {
    towline show -n shop -g edge --query properties.agentVersion -o tsv | grep -qx "$1" &&
        upgrade_state | jq -e '.phase == "Succeeded"'
}

upgrade_state() { direct --namespace towline-shop get configmap towline-upgrade -o 'jsonpath={.data.state}'; }
