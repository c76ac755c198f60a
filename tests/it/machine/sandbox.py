"""Starts a program as a service manager or a container engine would: as whom, with which capabilities, what it may write."""

import os
import pathlib
import resource
import shlex
import signal
import subprocess
import sys
import time

MACHINE = pathlib.Path(os.environ["MACHINE"])
# Bind mounts of the machine are looked at one by one: read-only is not inherited.
KEPT = ("/proc", "/sys", "/dev")


def fail(text):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {text}")


def script(command, *, user, group, capabilities, writable, hidden=(), binds=(), read_only=True):
    """The shell's words that make the place and start `command` in it."""
    lines = ["set -e"]
    lines += [f"mkdir -p {shlex.quote(to)} && mount --bind {shlex.quote(at)} {shlex.quote(to)}" for at, to in binds]
    lines += [f"mount --bind {shlex.quote(at)} {shlex.quote(at)}" for at in writable if at not in dict(map(reversed, binds))]
    lines += [f"mount -t tmpfs tmpfs {shlex.quote(at)}" for at in hidden if os.path.isdir(at)]
    if read_only:
        keep = " ".join(f"-e {shlex.quote(' ' + at + ' ')}" for at in (*writable, *hidden))
        others = " ".join(f"-e ' {at}[/ ]'" for at in KEPT)
        lines.append(
            f"cut -d' ' -f4,5,6 /proc/self/mountinfo | grep -v {others} {('| grep -vF ' + keep) if keep else ''} | "
            "while read -r _ at _; do mount -o remount,bind,ro \"$at\" 2>/dev/null || true; done"
        )
        lines.append("if touch /etc/written 2>/dev/null; then echo 'not read-only' >&2; exit 1; fi")
    plus = "".join(f",+{name}" for name in capabilities)
    words = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
    words += [f"--bounding-set=-all{plus}", f"--inh-caps=-all{plus}", f"--ambient-caps=-all{plus}"]
    lines.append(f"exec {shlex.join(words + list(command))}")
    return "\n".join(lines)


def start(name, text, files):
    """Starts it, with so many files at most (or what may be had here), and notes which process it is."""
    files = min(int(files), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    log = open(MACHINE / f"{name}.log", "ab")
    command = ["prlimit", f"--nofile={files}", "unshare", "--mount", "sh", "-c", text]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    (MACHINE / f"{name}.pid").write_text(str(child.pid))


def pid(name):
    return int((MACHINE / f"{name}.pid").read_text())


def runs(process):
    """Whether it does. It may end between any two looks, and while its file is read."""
    try:
        status = pathlib.Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "\nState:\tZ" not in status


def stop(name, grace):
    """SIGTERM, and a failure if that does not end it in time."""
    process = pid(name)
    os.kill(process, signal.SIGTERM)
    end = time.monotonic() + grace
    while runs(process):
        if time.monotonic() > end:
            fail(f"{name} did not end within {grace} s")
        time.sleep(0.05)


def seconds(text):
    """`60`, `60s` or `2min`."""
    for unit, factor in (("min", 60), ("s", 1), ("m", 60)):
        if text.endswith(unit):
            return float(text[: -len(unit)]) * factor
    return float(text)
