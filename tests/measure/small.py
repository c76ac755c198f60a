"""Small requests one after the other on one connection: prints p50 and p99 in milliseconds."""

import http.client
import ssl
import sys
import time
import urllib.parse

authority, url, header_file = sys.argv[1:]
parts = urllib.parse.urlsplit(url)
name, value = open(header_file).read().strip().split(": ", 1)
connection = http.client.HTTPSConnection(
    parts.hostname, parts.port, context=ssl.create_default_context(cafile=authority)
)
times = []
for _ in range(2200):
    start = time.perf_counter()
    connection.request("GET", parts.path, headers={name: value})
    answer = connection.getresponse()
    answer.read()
    times.append((time.perf_counter() - start) * 1000)
    assert answer.status == 200, answer.status
times = sorted(times[200:])
print(f"{times[len(times) // 2]:.2f} {times[len(times) * 99 // 100]:.2f}")
