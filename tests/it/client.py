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
session = stream(core.connect_get_namespaced_pod_exec, "p", namespace, command=["sh", "-c", "read line; echo got $line; exit 7"],
                 stderr=True, stdin=True, stdout=True, tty=False, _preload_content=False)
session.write_stdin("a word\n")
session.run_forever(timeout=20)
assert session.read_stdout() == "got a word\n" and session.returncode == 7, session.returncode
answer = stream(core.connect_get_namespaced_pod_exec, "p", namespace, command=["seq", "1", "300000"],
                stderr=True, stdin=False, stdout=True, tty=False)
assert answer == "".join(f"{number}\n" for number in range(1, 300001)), len(answer)
print("exec")

expected = "".join(f"{number}\n" for number in range(3, 20001)).encode()
for _ in range(10):
    forward = portforward(core.connect_get_namespaced_pod_portforward, "p", namespace, ports="8080")
    socket = forward.socket(8080)
    socket.settimeout(20)
    socket.sendall(b"GET /3 HTTP/1.0\r\n\r\n")
    received = b""
    while len(received.partition(b"\r\n\r\n")[2]) < len(expected):
        part = socket.recv(65536)
        if not part:
            break
        received += part
    socket.close()
    head, _, body = received.partition(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0], head
    assert body == expected, f"{len(body)} of {len(expected)} bytes, or changed"
    forward.close()
print("port-forward")

try:
    core.read_namespaced_pod("missing", namespace)
    raise AssertionError("a pod that is not there was read")
except client.ApiException as error:
    assert error.status == 404 and "NotFound" in error.body
print("all seen")
