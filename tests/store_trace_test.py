#!/usr/bin/env python3
"""Replays what torch's TCPStore said (tests/store_traces/*.json) to our server and to our client.

    store_trace_test.py TOOL [TRACE...]

The server has to answer the recorded requests byte by byte as torch's did; the client has to ask,
for the same calls, byte by byte what torch's did. scripts/record_store_trace.py makes a trace.
"""

import json
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import unittest

TOOL = sys.argv[1]
FOLDER = pathlib.Path(__file__).resolve().parent / "store_traces"
TRACES = [pathlib.Path(name) for name in sys.argv[2:]] or sorted(FOLDER.glob("*.json"))
TIMEOUT_S = 30
ABSENT = b"linkspan: this key is absent"


def receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError(f"closed after {len(data)} of {count} bytes: {data.hex()}")
        data += more
    return data


class Traces(unittest.TestCase):
    def each(self):
        self.assertTrue(TRACES, "there are no traces")
        for path in TRACES:
            with self.subTest(path.name):
                yield json.loads(path.read_text())

    def test_our_server(self):
        for trace in self.each():
            command = [TOOL, "store", "--port", "0", "--for", "60"]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            port = int(server.stdout.readline().split(":")[2])
            with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as client:
                for step in trace["steps"]:
                    for direction, data in step["bytes"]:
                        if direction == ">":
                            client.sendall(bytes.fromhex(data))
                        else:
                            told = receive(client, len(data) // 2).hex()
                            self.assertEqual(told, data, step["call"])
                client.settimeout(0.2)
                with self.assertRaises(TimeoutError, msg="it says more than torch's server did"):
                    client.recv(1)
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=TIMEOUT_S)
            self.assertEqual(server.returncode, 0)

    def test_our_client(self):
        for trace in self.each():
            heard, faults = [], []
            listener = socket.create_server(("127.0.0.1", 0))
            player = threading.Thread(target=self.play, args=(trace, listener, heard, faults))
            player.start()
            calls = [step["call"] for step in trace["steps"][1:]]
            port = str(listener.getsockname()[1])
            ran = subprocess.run(
                [TOOL, "store", "--port", port, "--dialect", trace["dialect"], "-"],
                input="".join(json.dumps(call) + "\n" for call in calls),
                capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
            player.join(TIMEOUT_S)
            listener.close()
            self.assertEqual(faults, [], ran.stdout + ran.stderr)
            answers = [json.loads(line) for line in ran.stdout.splitlines()]
            self.assertEqual(len(answers), len(calls), ran.stderr)
            for call, answer in zip(calls, answers):
                late = call.get("timeout_ms") == 300
                empty = "timeout_ms" in call and answer["code"] != "ok"
                self.assertEqual(answer["code"], "timed_out" if late or empty else "ok", call)

    def play(self, trace: dict, listener: socket.socket, heard: list, faults: list) -> None:
        """Torch's server, as far as it was recorded."""
        connection, _ = listener.accept()
        connection.settimeout(TIMEOUT_S)
        try:
            if trace["dialect"] == "older":  # which has no beginning: ours counts keys
                assert receive(connection, 1) == b"\x06"
                connection.sendall(bytes(8))
            for step in trace["steps"]:
                for direction, data in step["bytes"]:
                    if direction == "<" and step["call"]["op"] == "open":
                        connection.sendall(heard[-1][6:])  # the nonce
                    elif direction == "<":
                        connection.sendall(bytes.fromhex(data))
                    else:
                        heard.append(receive(connection, len(data) // 2))
                        told = heard[-1].hex()
                        if step["call"]["op"] == "open":
                            told, data = told[:12], data[:12]
                        if told != data:
                            faults.append(f"{step['call']}: {told}, torch's client said {data}")
                if step["call"]["op"] == "get" and data == bytes(8).hex():
                    # Ours asks by compare_set, the code before get's, whether the key is absent.
                    text = len(ABSENT).to_bytes(8, "little") + ABSENT
                    look = bytes([heard[-1][0] - 1]) + heard[-1][1:] + 2 * text
                    if (told := receive(connection, len(look))) != look:
                        faults.append(f"{step['call']}, empty: {told.hex()}")
                    connection.sendall(bytes(8))
            if more := connection.recv(1):
                faults.append(f"it asks more than torch's client did: {more.hex()}")
        except (OSError, EOFError, AssertionError) as error:
            faults.append(f"{step['call'] if heard else 'open'}: {error!r}")
        connection.close()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
