"""The official Python client through the tunnel: list, watch, exec, port-forward."""

import sys

from kubernetes import client, config, watch
from kubernetes.stream import portforward, stream

namespace = sys.argv[1]
config.load_kube_config()
core = client.CoreV1Api()

assert "p" in [pod.metadata.name for pod in core.list_namespaced_pod(namespace).items]
print("list")

core.create_namespaced_config_map(namespace, {"metadata": {"name": "seen"}})
names = []
for event in watch.Watch().stream(core.list_namespaced_config_map, namespace, timeout_seconds=10):
    names.append(event["object"].metadata.name)
    if "seen" in names:
        break
assert "seen" in names, names
print("watch")

answer = stream(core.connect_get_namespaced_pod_exec, "p", namespace, command=["sh", "-c", "echo out; echo err >&2"],
                stderr=True, stdin=False, stdout=True, tty=False)
assert "out" in answer and "err" in answer, answer
print("exec")

forward = portforward(core.connect_get_namespaced_pod_portforward, "p", namespace, ports="8080")
socket = forward.socket(8080)
socket.settimeout(20)
socket.sendall(b"GET /passwd HTTP/1.0\r\n\r\n")
received = b""
while b"\r\n\r\n" not in received:
    part = socket.recv(65536)
    if not part:
        break
    received += part
socket.close()
assert received.startswith(b"HTTP/1."), received
print("port-forward")

try:
    core.read_namespaced_pod("missing", namespace)
except client.ApiException as error:
    assert error.status == 404 and "NotFound" in error.body
print("all seen")
