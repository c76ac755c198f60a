# shellcheck shell=bash
# Two authorities (clients and servers; the front proxy of aggregated APIs), the
# certificates below them, and a kubeconfig for each component.

make_credentials() {
    local pki=$state/pki
    authority ca
    authority front-proxy-ca
    openssl genrsa -out "$pki/service-accounts.key" 2048 2>/dev/null
    openssl rsa -in "$pki/service-accounts.key" -pubout -out "$pki/service-accounts.pub" 2>/dev/null

    certificate ca apiserver "/CN=kube-apiserver" \
        "IP:127.0.0.1,IP:$host_ip,IP:$service_ip,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
    certificate ca kubelet-serving "/O=system:nodes/CN=system:node:node-1" "IP:$node_ip,DNS:node-1"
    certificate ca apiserver-kubelet "/O=system:masters/CN=kube-apiserver-kubelet-client"
    certificate front-proxy-ca front-proxy "/CN=front-proxy-client"

    certificate ca admin "/O=system:masters/CN=admin"
    certificate ca controllers "/CN=system:kube-controller-manager"
    certificate ca scheduler "/CN=system:kube-scheduler"
    certificate ca kubelet "/O=system:nodes/CN=system:node:node-1"
    certificate ca kube-proxy "/CN=system:kube-proxy"
    local who
    for who in admin controllers scheduler kubelet kube-proxy; do
        kubeconfig "$who" >"$pki/$who.kubeconfig"
    done
    install -m 600 "$pki/admin.kubeconfig" "$admin"
}

authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
        -subj "/CN=towline-test-$1" -keyout "$state/pki/$1.key" -out "$state/pki/$1.crt" \
        -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature 2>/dev/null
}

# certificate AUTHORITY NAME SUBJECT [SUBJECT-ALTERNATIVE-NAMES]
certificate() {
    local pki=$state/pki
    local extensions="extendedKeyUsage=clientAuth,serverAuth
keyUsage=critical,digitalSignature
${4:+subjectAltName=$4}"
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
        -subj "$3" -keyout "$pki/$2.key" -out "$pki/$2.csr" 2>/dev/null
    openssl x509 -req -in "$pki/$2.csr" -CA "$pki/$1.crt" -CAkey "$pki/$1.key" \
        -CAcreateserial -days 3650 -extfile <(echo "$extensions") -out "$pki/$2.crt" 2>/dev/null
    rm "$pki/$2.csr"
}

api_url() {
    if ((has_node)); then
        echo "https://$host_ip:$port_api"
    else
        echo "https://127.0.0.1:$port_api"
    fi
}

kubeconfig() {
    local pki=$state/pki
    cat <<END
apiVersion: v1
kind: Config
current-context: towline-test
contexts: [{name: towline-test, context: {cluster: towline-test, user: $1}}]
clusters:
- name: towline-test
  cluster:
    server: $(api_url)
    certificate-authority-data: $(base64 -w0 "$pki/ca.crt")
users:
- name: $1
  user:
    client-certificate-data: $(base64 -w0 "$pki/$1.crt")
    client-key-data: $(base64 -w0 "$pki/$1.key")
END
}
