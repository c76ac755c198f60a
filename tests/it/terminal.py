"""Runs a command on a terminal, asks the shell there for the terminal's size, changes it, asks again."""

import fcntl, os, pty, select, signal, struct, sys, termios, time


def resize(fd, rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_until(fd, text, seconds):
    seen, end = b"", time.monotonic() + seconds
    while text not in seen and time.monotonic() < end:
        # What is typed while kubectl takes over the terminal is thrown away: without an answer it is typed again.
        if not select.select([fd], [], [], max(0, end - time.monotonic()))[0]:
            break
        try:
            seen += os.read(fd, 4096)
        except OSError:
            break
    sys.stdout.write(seen.decode(errors="replace"))
    return text in seen


pid, fd = pty.fork()
if pid == 0:
    # The size must be set before the command looks at it.
    resize(0, 33, 101)
    os.execvp("sh", ["sh", "-c", "exec " + sys.argv[1]])

signal.signal(signal.SIGALRM, lambda *_: sys.exit(3))
signal.alarm(120)
ok = False
for _ in range(20):
    os.write(fd, b"stty size\n")
    if read_until(fd, b"33 101", 1):
        ok = True
        break
resize(fd, 44, 132)
os.kill(pid, signal.SIGWINCH)
changed = False
for _ in range(20):
    os.write(fd, b"stty size\n")
    if read_until(fd, b"44 132", 1):
        changed = True
        break
os.write(fd, b"exit\n")
os.waitpid(pid, 0)
sys.exit(0 if ok and changed else 1)
