"""The floor of memory: a process that has imported trio, says so on its output and waits for the end of its input."""

import sys

import trio

if __name__ == "__main__":
    print("trio", trio.__version__, flush=True)
    sys.stdin.read()
