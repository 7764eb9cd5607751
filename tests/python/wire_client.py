"""A second implementation of the wire protocol, from docs/wire_protocol.md alone: it meets an
Engine over TCP, looks a region up, writes and reads it, and sends and hears notifications.

One thread, one stream, blocking sockets with a deadline; the tables' code is flatc's, from
src/base/schema.
"""

from __future__ import annotations

import collections
import hmac
import importlib
import os
import pathlib
import socket
import struct
import subprocess
from typing import Any

import flatbuffers
import linkspan
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HELLO, PROOF, READY, IMPORT, IMPORTED, NOTIFY, GOODBYE, ERROR, STREAM = 1, 2, 3, 4, 5, 6, 7, 8, 17
PUT, GET, DATA, ENDED = 1, 2, 3, 4
HEADER = struct.Struct("<IHHQQ")  # length, version, op, id, incarnation
LAST, SUMMED = 1, 2  # flags
CHUNK = 1 << 20

Frame = collections.namedtuple("Frame", "op id incarnation payload")


def make_tables(schemas: pathlib.Path, out: pathlib.Path) -> None:
    """Modules linkspan.schema.*, made in `out`."""
    files = [schemas / f"{name}.fbs" for name in ("control", "descriptor", "wire", "tcp")]
    subprocess.run(["flatc", "--python", "--gen-object-api", "-o", out, *files], check=True)
    linkspan.__path__.append(str(out / "linkspan"))


def table(kind: str, /, **fields: Any) -> Any:
    made = getattr(importlib.import_module(f"linkspan.schema.{kind}"), f"{kind}T")()
    vars(made).update(fields)
    return made


def pack(kind: str, /, **fields: Any) -> bytes:
    builder = flatbuffers.Builder()
    builder.Finish(table(kind, **fields).Pack(builder))
    return bytes(builder.Output())


def unpack(name: str, payload: bytes) -> Any:
    module = importlib.import_module(f"linkspan.schema.{name}")
    return getattr(module, f"{name}T").InitFromObj(getattr(module, name).GetRootAs(payload, 0))


def pack_import(name: str) -> bytes:
    """By hand, for flatc's code of a table of that name is no Python."""
    builder = flatbuffers.Builder()
    text = builder.CreateString(name)
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(0, text, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def hmac_sha256(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


class Sealer:
    """GMAC with AES-256; the nonce is the count of messages and 4 zero bytes."""

    def __init__(self, key: bytes) -> None:
        self._gcm, self._count = AESGCM(key), 0

    def seal(self, message: bytes) -> bytes:
        nonce = struct.pack("<Q4x", self._count)
        self._count += 1
        return self._gcm.encrypt(nonce, b"", message)


class Connection:
    """Frames over a socket, sealed once both sides have proved what they know."""

    def __init__(self, address: tuple[str, int], incarnation: int) -> None:
        self._socket = socket.create_connection(address, timeout=20)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._incarnation = incarnation
        self._out: Sealer | None = None
        self._in: Sealer | None = None

    def seal(self, key: bytes) -> None:
        """With the keys of `key`, of the side that has connected."""
        self._out = Sealer(hmac_sha256(key, b"linkspan seal connector"))
        self._in = Sealer(hmac_sha256(key, b"linkspan seal acceptor"))

    def send(self, op: int, number: int = 0, payload: bytes = b"") -> None:
        frame = HEADER.pack(len(payload), 1, op, number, self._incarnation) + payload
        self._socket.sendall(frame + (self._out.seal(frame) if self._out else b""))

    def receive(self, *ops: int) -> Frame:
        """The next frame, which is of one of these ops."""
        header = self._exactly(HEADER.size)
        length, _, op, number, incarnation = HEADER.unpack(header)
        payload = self._exactly(length)
        if self._in and self._exactly(16) != self._in.seal(header + payload):
            raise ConnectionError("a frame whose seal is not its own")
        if op == ERROR and ERROR not in ops and not self._in:
            raise PermissionError(unpack("Error", payload).what.decode())
        if op not in ops:
            raise ConnectionError(f"op {op} in the place of {ops}")
        return Frame(op, number, incarnation, payload)

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise ConnectionError("the Engine has closed the connection")
            data += more
        return data


class WireClient:
    """A peer of the Engine at `address`; `secret` as it has one, empty if it has none."""

    def __init__(self, address: tuple[str, int], secret: bytes = b"") -> None:
        self.incarnation = int.from_bytes(os.urandom(8), "little") | 1
        self.notifications: collections.deque[bytes] = collections.deque()
        self._batches = 0
        ours = pack("Hello", engine="wire client", bootId=bytes(16), keyShare=os.urandom(32),
                    transports=[table("TransportAddress", name="tcp", bytes=pack(
                        "TcpAddress", incarnation=self.incarnation, streams=1, chunk=CHUNK))],
                    proves=bool(secret))
        self._control = Connection(address, self.incarnation)
        self._control.send(HELLO, payload=ours)
        hello = self._control.receive(HELLO)
        said = [part for incarnation, words in ((self.incarnation, ours), (hello.incarnation, hello.payload))
                for part in (struct.pack("<QQ", incarnation, len(words)), words)]
        key = hmac_sha256(secret, b"linkspan session", *said)
        if secret:
            proof = hmac_sha256(key, b"linkspan proof connector")
            self._control.send(PROOF, payload=pack("Proof", bytes=proof))
            answer = unpack("Proof", self._control.receive(PROOF).payload)
            if bytes(answer.bytes) != hmac_sha256(key, b"linkspan proof acceptor"):
                raise PermissionError("the Engine has another secret")
            self._control.seal(key)
        self._control.send(READY)
        self._control.receive(READY)
        stream_key = hmac_sha256(key, b"linkspan stream", struct.pack("<Q", 1), b"tcp")
        self._stream = Connection(address, self.incarnation)
        self._stream.send(STREAM, payload=pack(
            "Stream", transport="tcp", number=1, proof=hmac_sha256(stream_key, b"linkspan proof connector")))
        self._stream.receive(HELLO)  # said to whoever connects
        self._stream.receive(READY)
        if secret:
            self._stream.seal(stream_key)

    def lookup(self, name: str) -> Any:
        """The WireKey of a published region."""
        self._control.send(IMPORT, 1, pack_import(name))
        frame = self._next(IMPORTED, ERROR)
        if frame.op == ERROR:
            raise KeyError(unpack("Error", frame.payload).what.decode())
        descriptor = unpack("Descriptor", bytes(unpack("Imported", frame.payload).descriptor))
        return next(unpack("WireKey", bytes(key.bytes)) for key in descriptor.keys if key.transport == b"tcp")

    def write(self, region: Any, offset: int, data: bytes, notification: bytes = b"",
              summed: bool = False, wrong: int = 0) -> int:
        """All of it has landed; the code that the Engine tells, 0: ok. `wrong` spoils each sum."""
        self._batches += 1
        for at in range(0, len(data), CHUNK):
            part, last = data[at : at + CHUNK], at + CHUNK >= len(data)
            told = notification if last else b""
            flags = (LAST if last else 0) | (SUMMED if summed else 0)
            fields = struct.pack("<Q16sQIIII", region.serial, bytes(region.token), at, 1, flags,
                                 len(told), 0)
            self._send_summed(PUT, fields + struct.pack("<QQ", offset + at, len(part)) + told + part,
                              44 if summed else None, wrong)
        ended = self._stream.receive(ENDED)
        assert ended.id == self._batches
        return struct.unpack_from("<I", ended.payload)[0]

    def read(self, region: Any, offset: int, count: int, summed: bool = False, wrong: int = 0) -> bytes:
        self._batches += 1
        fields = struct.pack("<Q16sIIII", region.serial, bytes(region.token), 1,
                             SUMMED if summed else 0, 0, 0)
        self._send_summed(GET, fields + struct.pack("<QQ", offset, count), 32 if summed else None, wrong)
        data, flags = bytearray(count), 0
        while not flags & LAST:
            frame = self._stream.receive(DATA)
            position, flags, code, value = struct.unpack_from("<QIII", frame.payload)
            assert bool(flags & SUMMED) == summed
            if summed and value != self._sum_of(frame.op, frame.incarnation, frame.payload, 16):
                raise OSError("a wrong sum")
            if code:
                raise PermissionError(f"code {code}")
            data[position : position + len(frame.payload) - 24] = frame.payload[24:]
        return bytes(data)

    def _sum_of(self, op: int, incarnation: int, payload: bytes, at: int) -> int:
        """Of a frame of the last batch whose sum is `at` those bytes behind its header."""
        header = HEADER.pack(len(payload), 1, op, self._batches, incarnation)
        return crc32c(header + payload[:at] + bytes(4) + payload[at + 4 :])

    def _send_summed(self, op: int, payload: bytes, at: int | None, wrong: int) -> None:
        if at is not None:
            value = self._sum_of(op, self.incarnation, payload, at) ^ wrong
            payload = payload[:at] + struct.pack("<I", value) + payload[at + 4 :]
        self._stream.send(op, self._batches, payload)

    def notify(self, message: bytes) -> None:
        self._control.send(NOTIFY, payload=pack("Notify", bytes=message))

    def next_notification(self) -> bytes:
        if not self.notifications:
            self.notifications.append(bytes(unpack("Notify", self._control.receive(NOTIFY).payload).bytes))
        return self.notifications.popleft()

    def close(self) -> None:
        self._control.send(GOODBYE)
        self._control.close()
        self._stream.close()

    def _next(self, *ops: int) -> Frame:
        while (frame := self._control.receive(NOTIFY, *ops)).op == NOTIFY:
            self.notifications.append(bytes(unpack("Notify", frame.payload).bytes))
        return frame
