"""Listens on a loopback port of its own network namespace and carries each connection to a unix socket."""

import socket, sys, threading


def copy(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=512)
print("listening", flush=True)
while True:
    inner, _ = listener.accept()
    outer = socket.socket(socket.AF_UNIX)
    outer.connect(sys.argv[2])
    for pair in ((inner, outer), (outer, inner)):
        threading.Thread(target=copy, args=pair, daemon=True).start()
