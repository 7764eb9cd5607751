"""A second implementation of the wire protocol, from docs/wire_protocol.md alone: it meets an
Engine over TCP, looks a region up, writes and reads it, and sends and hears notifications. One
thread, one stream, blocking sockets with a deadline."""

import collections
import hmac
import itertools
import os
import socket
import struct
from typing import Any, Callable

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from wire_tables import make_tables, pack, table, unpack  # noqa: F401

HELLO, PROOF, READY, IMPORT, IMPORTED, NOTIFY, GOODBYE, ERROR, STREAM = 1, 2, 3, 4, 5, 6, 7, 8, 17
OFFER, ACCEPT, FINISHED, WITHDRAW = 10, 11, 12, 13
PUT, GET, DATA, ENDED = 1, 2, 3, 4
HEADER = struct.Struct("<IHHQQ")  # length, version, op, id, incarnation
# The fields of a stream's frames; of a put and a get with the one span behind them.
PUT_FIELDS = struct.Struct("<Q16sQIIIIQQ")  # serial, token, position, spans, flags, notification, sum
GET_FIELDS = struct.Struct("<Q16sIIIIQQ")  # serial, token, spans, flags, sum, 0
DATA_FIELDS = struct.Struct("<QIIII")  # position, flags, code, sum, 0
ENDED_FIELDS = struct.Struct("<II")  # code, 0
CHUNK, LAST = 1 << 20, 1  # bytes; a flag
Frame = collections.namedtuple("Frame", "op id incarnation payload")


def hmac_of(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


def sealer(key: bytes, side: bytes) -> Callable[[bytes], bytes]:
    """GMAC with AES-256; the nonce is the count of messages and 4 zero bytes."""
    gcm, count = AESGCM(hmac_of(key, b"linkspan seal ", side)), itertools.count()
    return lambda message: gcm.encrypt(struct.pack("<Q4x", next(count)), b"", message)


class Connection:
    """Frames over a socket; the first is said at once, and their hello heard."""

    def __init__(self, address: tuple[str, int], incarnation: int, op: int, payload: bytes) -> None:
        with socket.create_connection(address, timeout=20) as made:  # closed with its file
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.file = made.makefile("rwb")
        self._incarnation = incarnation
        self._seal_of_ours = self._seal_of_theirs = lambda message: b""
        self.send(op, payload)
        self.hello = self.receive(HELLO)

    def seal(self, key: bytes) -> None:
        self._seal_of_ours, self._seal_of_theirs = sealer(key, b"connector"), sealer(key, b"acceptor")

    def send(self, op: int, payload: bytes = b"", number: int = 0) -> None:
        frame = HEADER.pack(len(payload), 1, op, number, self._incarnation) + payload
        self.file.write(frame + self._seal_of_ours(frame))
        self.file.flush()

    def receive(self, *ops: int) -> Frame:
        """The next frame, which is of one of these ops."""
        header = self.file.read(HEADER.size)
        if len(header) < HEADER.size:
            raise ConnectionError("the Engine has closed the connection")
        length, _, op, number, incarnation = HEADER.unpack(header)
        payload = self.file.read(length)
        seal = self._seal_of_theirs(header + payload)
        if len(payload) < length or self.file.read(len(seal)) != seal:
            raise ConnectionError("a frame that is cut, or whose seal is not its own")
        if op not in ops and op == ERROR:
            raise PermissionError(unpack("Error", payload).what.decode())
        if op not in ops:
            raise ConnectionError(f"op {op} in the place of {ops}")
        return Frame(op, number, incarnation, payload)


class WireClient:
    """A peer of the Engine at `address`; `secret` as it has one, empty if it has none."""

    def __init__(self, address: tuple[str, int], secret: bytes = b"") -> None:
        self._notifications, self._batches = collections.deque(), 0
        us = int.from_bytes(os.urandom(8), "little") | 1
        tcp = pack("TcpAddress", incarnation=us, streams=1, chunk=CHUNK)
        ours = pack("Hello", engine="wire client", bootId=bytes(16), keyShare=os.urandom(32),
                    transports=[table("TransportAddress", name="tcp", bytes=tcp)], proves=bool(secret))
        self._control = Connection(address, us, HELLO, ours)
        hello = self._control.hello
        key = hmac_of(secret, b"linkspan session", struct.pack("<QQ", us, len(ours)), ours,
                      struct.pack("<QQ", hello.incarnation, len(hello.payload)), hello.payload)
        if secret:
            self._control.send(PROOF, pack("Proof", bytes=hmac_of(key, b"linkspan proof connector")))
            answer = unpack("Proof", self._control.receive(PROOF).payload)
            if bytes(answer.bytes) != hmac_of(key, b"linkspan proof acceptor"):
                raise PermissionError("the Engine has another secret")
            self._control.seal(key)
        self._control.send(READY)
        self._control.receive(READY)
        key = hmac_of(key, b"linkspan stream", struct.pack("<Q", 1), b"tcp")
        self._stream = Connection(address, us, STREAM, pack(
            "Stream", transport="tcp", number=1, proof=hmac_of(key, b"linkspan proof connector")))
        self._stream.receive(READY)
        if secret:
            self._stream.seal(key)

    def lookup(self, name: str) -> Any:
        """The WireKey of a published region."""
        return self._import(name, 0)

    def _import(self, name: str, serial: int) -> Any:
        self._control.send(IMPORT, pack("Import", name=name, serial=serial))
        while (frame := self._control.receive(IMPORTED, ERROR, NOTIFY)).op == NOTIFY:
            self._notifications.append(frame.payload)
        if frame.op == ERROR:
            raise KeyError(unpack("Error", frame.payload).what.decode())
        return self._key_of(unpack("Imported", frame.payload).descriptor)

    @staticmethod
    def _key_of(descriptor: Any) -> Any:
        keys = unpack("Descriptor", descriptor).keys
        return next(unpack("WireKey", key.bytes) for key in keys if key.transport == b"tcp")

    def offer(self, tag: int, size: int, kind: int = 0, serial: int = 1) -> int:
        """The number of a message that the Engine may receive."""
        self._batches += 1
        self._control.send(OFFER, pack("SendOffer", tag=tag, bytes=size, kind=kind, serial=serial,
                                       require=""), self._batches)
        return self._batches

    def next_key(self, op: int) -> tuple[int, Any, int]:
        """The next message that the Engine offers or accepts: its number, the WireKey of its memory
        and where it begins there."""
        frame = self._control.receive(op)
        said = unpack("SendOffer" if op == OFFER else "SendAccept", frame.payload)
        key = self._key_of(said.descriptor) if said.descriptor is not None else self.import_of(said.serial)
        return frame.id, key, said.offset

    def import_of(self, serial: int) -> Any:
        """The WireKey of the memory of a message."""
        return self._import("", serial)

    def finish(self, number: int, by_sender: bool, code: int = 0) -> None:
        self._control.send(FINISHED, pack("SendFinished", bySender=by_sender, code=code, what=""), number)

    def await_op(self, op: int) -> int:
        return self._control.receive(op).id

    def write(self, region: Any, offset: int, data: bytes, notification: bytes = b"") -> int:
        """All of it has landed; the code that the Engine tells, 0: ok."""
        self._batches += 1
        for at in range(0, len(data), CHUNK):
            part, last = data[at : at + CHUNK], at + CHUNK >= len(data)
            told = notification if last else b""
            fields = PUT_FIELDS.pack(region.serial, bytes(region.token), at, 1, LAST * last, len(told), 0,
                                     offset + at, len(part))
            self._stream.send(PUT, fields + told + part, self._batches)
        ended = self._stream.receive(ENDED)
        assert ended.id == self._batches
        return ENDED_FIELDS.unpack_from(ended.payload)[0]

    def read(self, region: Any, offset: int, count: int) -> bytes:
        self._batches += 1
        self._stream.send(GET, GET_FIELDS.pack(
            region.serial, bytes(region.token), 1, 0, 0, 0, offset, count), self._batches)
        data, flags = bytearray(count), 0
        while not flags & LAST:
            payload = self._stream.receive(DATA).payload
            position, flags, code, _, _ = DATA_FIELDS.unpack_from(payload)
            if code:
                raise PermissionError(f"code {code}")
            data[position : position + len(payload) - DATA_FIELDS.size] = payload[DATA_FIELDS.size :]
        return bytes(data)

    def notify(self, message: bytes) -> None:
        self._control.send(NOTIFY, pack("Notify", bytes=message))

    def next_notification(self) -> bytes:
        if not self._notifications:
            self._notifications.append(self._control.receive(NOTIFY).payload)
        return bytes(unpack("Notify", self._notifications.popleft()).bytes)

    def close(self) -> None:
        self._control.send(GOODBYE)
        self._control.file.close()
        self._stream.file.close()
