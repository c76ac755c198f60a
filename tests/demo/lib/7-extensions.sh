# shellcheck shell=bash
# An extension: a chart of the catalogue, installed by an agent in the cluster, upgraded and removed (docs/extensions.md).

# Two versions of a chart with one ConfigMap, into the catalogue that is being made in this folder.
add_charts() {
    local version
    for version in 1.0.0 1.1.0; do
        rm -rf web
        mkdir -p web/templates
        cat >web/Chart.yaml <<END
apiVersion: v2
name: web
version: $version
END
        echo 'greeting: hello' >web/values.yaml
        cat >web/templates/settings.yaml <<'END'
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {version: "{{ .Chart.Version }}", greeting: "{{ .Values.greeting }}"}
END
        tar --create --gzip --file "web-$version.tgz" --owner 0 --group 0 web
        towline catalogue add "web-$version.tgz" --catalogue index --type example.web --train Stable --release-namespace web
    done
}

walk_extensions() {
    [[ $gitops ]] || return 0
    title "extensions"
    local web=(-g edge -c shop -n web)
    step "extension create" 0 typed_as towline extension create "${web[@]}" --type example.web --version 1.0.0
    step "installed" 0 has_web 1.0.0 hello
    step "extension update" 0 typed_as towline extension update "${web[@]}" --version 1.1.0 --set greeting=bye
    step "upgraded" 0 has_web 1.1.0 bye
    step "extension events" 0 typed_as towline extension events "${web[@]}"
    step "extension delete" 0 typed_as towline extension delete "${web[@]}" --yes
    step "nothing is left of it" 1 web_is_gone
}

has_web() {
    show "kubectl get configmap settings --namespace web -o 'jsonpath={.data}'    # not through the tunnel"
    local said
    said=$(direct --namespace web get configmap settings -o 'jsonpath={.data.version} {.data.greeting}')
    echo "$said"
    [[ $said == "$1 $2" ]]
}

web_is_gone() {
    show "kubectl get configmap settings --namespace web    # not through the tunnel, must be gone"
    direct --namespace web get configmap settings
}
