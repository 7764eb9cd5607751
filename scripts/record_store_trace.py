#!/usr/bin/env python3
"""Records what torch's TCPStore client and server say to each other, for tests/store_trace_test.py.

    record_store_trace.py --out FILE [--no-libuv]

A scripted session runs through a relay; FILE then has, call by call, the bytes of both directions.
The same torch gives the same file: keys and values are fixed, and the nonce of its ping is written as
zeros. Needs torch and Python 3.10; tests/store_traces/README.md says which are kept.
"""

import argparse
import datetime
import json
import socket
import subprocess
import sys
import threading
import time

QUIET_S = 0.2  # after a call, until its last bytes have passed the relay
ANSWER_S = 20
MAGIC = bytes.fromhex("00cef7853c")

# As `linkspan store -` takes them. wait and get by their own timeout where there is one.
SESSION = [
    {"op": "set", "keys": ["a"], "values": ["31"]},
    {"op": "get", "keys": ["a"]},
    {"op": "set", "keys": ["binary"], "values": ["00ff0a00"]},
    {"op": "get", "keys": ["binary"]},
    {"op": "set", "keys": ["empty"], "values": [""]},
    {"op": "get", "keys": ["empty"]},
    {"op": "add", "keys": ["n"], "number": 5},
    {"op": "add", "keys": ["n"], "number": -7},
    {"op": "get", "keys": ["n"]},
    {"op": "compare_set", "keys": ["c"], "values": ["79", "7a"]},
    {"op": "compare_set", "keys": ["c"], "values": ["", "78"]},
    {"op": "compare_set", "keys": ["c"], "values": ["79", "7a"]},
    {"op": "compare_set", "keys": ["c"], "values": ["78", "7a"]},
    {"op": "check", "keys": ["a", "c"]},
    {"op": "check", "keys": ["a", "none"]},
    {"op": "wait", "keys": ["a", "n"]},
    {"op": "delete", "keys": ["a"]},
    {"op": "delete", "keys": ["a"]},
    {"op": "num_keys"},
    {"op": "append", "keys": ["p"], "values": ["6162"]},
    {"op": "append", "keys": ["p"], "values": ["0063"]},
    {"op": "get", "keys": ["p"]},
    {"op": "multi_set", "keys": ["x", "y"], "values": ["31", "3232"]},
    {"op": "multi_get", "keys": ["y", "x", "p"]},
    {"op": "queue_push", "keys": ["q"], "values": ["01"]},
    {"op": "queue_push", "keys": ["q"], "values": ["0200"]},
    {"op": "queue_length", "keys": ["q"]},
    {"op": "check", "keys": ["q"]},
    {"op": "queue_pop", "keys": ["q"]},
    {"op": "queue_pop", "keys": ["q"], "timeout_ms": 0},
    {"op": "queue_pop", "keys": ["q"], "timeout_ms": 0},
    {"op": "queue_length", "keys": ["q"]},
    {"op": "num_keys"},
    {"op": "wait", "keys": ["none"], "timeout_ms": 300},
]  # fmt: skip


# ---- the relay, a process of its own: calls into torch may hold the interpreter's lock -------------


def relay(port: int) -> None:
    """A line on stdin ends a step; at its end the steps go to stdout."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    lock, steps, talks = threading.Lock(), [[]], {}

    def pump(source, sink, who, direction):
        while data := source.recv(1 << 16):
            with lock:
                talks.setdefault("speaker", who)  # torch 1.13 has a second connection, which is silent
                if talks["speaker"] == who:
                    step = steps[-1]
                    if step and step[-1][0] == direction:
                        step[-1][1] += data.hex()
                    else:
                        step.append([direction, data.hex()])
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)

    def accept():
        for who in range(16):
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            for pair in ((client, server, who, ">"), (server, client, who, "<")):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    for _ in sys.stdin:
        with lock:
            steps.append([])
    print(json.dumps(steps[:-1]), flush=True)


# ---- the session ------------------------------------------------------------------------------------


def perform(store, call: dict) -> bool:
    """False: this torch does not know it."""
    values = [bytes.fromhex(value) for value in call.get("values", [])]
    keys, op = call.get("keys", []), call["op"]
    name = {"delete": "delete_key", "queue_length": "queue_len"}.get(op, op)
    if not hasattr(store, name) or ("p" in keys and not hasattr(store, "append")):
        return False
    ask = getattr(store, name)
    try:
        if op in ("check", "multi_get"):
            ask(keys)
        elif op == "wait":
            ask(keys, datetime.timedelta(milliseconds=call.get("timeout_ms", ANSWER_S * 1000)))
        elif op == "multi_set":
            ask(keys, values)
        elif op == "add":
            ask(keys[0], call["number"])
        elif op == "queue_pop":
            ask(keys[0], "timeout_ms" not in call)
        else:
            ask(*keys, *values)
    except NotImplementedError:
        return False
    except Exception as error:  # the time-out and the empty queue, which are in the session
        if "timeout_ms" not in call:
            raise RuntimeError(f"{call}: {error}") from error
        print(f"{op}: {str(error).splitlines()[0]}")
    return True


def record(libuv: bool) -> dict:
    import torch
    import torch.distributed as dist

    modern = "use_libuv" in (dist.TCPStore.__init__.__doc__ or "")
    options = {"timeout": datetime.timedelta(seconds=ANSWER_S), "wait_for_workers": False}
    if modern:
        options["use_libuv"] = libuv
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, **options)
    proxy = subprocess.Popen([sys.executable, __file__, "--relay", str(server.port)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip

    def mark():
        time.sleep(QUIET_S)
        print(file=proxy.stdin, flush=True)

    store = dist.TCPStore("127.0.0.1", int(proxy.stdout.readline()), is_master=False, **options)
    mark()
    done = [{"op": "open"}]
    for call in SESSION:
        if perform(store, call):
            done.append(call)
            mark()
    proxy.stdin.close()
    steps = json.loads(proxy.stdout.readline())
    proxy.wait(ANSWER_S)
    for way in steps[0]:  # the nonce
        if way[0] == ">" and len(way[1]) == 20 and bytes.fromhex(way[1]).startswith(MAGIC):
            way[1] = way[1][:12] + "00000000"
        elif len(way[1]) == 8:
            way[1] = "00000000"
    backend = "older" if not modern else "libuv" if libuv else "without libuv"
    return {
        "torch": torch.__version__,
        "backend": backend,
        "dialect": "current" if modern else "older",
        "steps": [{"call": call, "bytes": step} for call, step in zip(done, steps, strict=True)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    parser.add_argument("--no-libuv", action="store_true", help="the server without libuv")
    parser.add_argument("--relay", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.relay:
        relay(arguments.relay)
        return 0
    if not arguments.out:
        parser.error("--out FILE")
    trace = record(not arguments.no_libuv)
    steps = ",\n".join(f"  {json.dumps(step)}" for step in trace.pop("steps"))
    head = json.dumps(trace)[:-1]
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write(f'{head}, "steps": [\n{steps}\n]}}\n')
    print(f"{arguments.out}: torch {trace['torch']}, {trace['backend']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
