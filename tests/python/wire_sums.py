"""Sums of frames (docs/wire_protocol.md) for the stream of a wire_client.WireClient."""

import struct
from typing import Any

from wire_client import DATA, GET, HEADER, PUT, Connection, Frame

SUMMED = 2  # a flag
PLACES = {PUT: (36, 44), GET: (28, 32), DATA: (8, 16)}  # of flags and sum, behind the header


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


class SummedStream:
    """In the place of `stream`: what goes has a sum, and so has what comes. `wrong` spoils each that goes."""

    def __init__(self, stream: Connection, wrong: int = 0) -> None:
        self._stream, self._wrong = stream, wrong

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def send(self, op: int, payload: bytes, number: int) -> None:
        flags, place = PLACES[op]
        bits = struct.pack("<I", struct.unpack_from("<I", payload, flags)[0] | SUMMED)
        payload = payload[:flags] + bits + payload[flags + 4 :]
        header = HEADER.pack(len(payload), 1, op, number, self._stream._incarnation)
        value = struct.pack("<I", crc32c(header + payload) ^ self._wrong)
        self._stream.send(op, payload[:place] + value + payload[place + 4 :], number)

    def receive(self, *ops: int) -> Frame:
        frame = self._stream.receive(*ops)
        if frame.op in PLACES:
            flags, place = PLACES[frame.op]
            header = HEADER.pack(len(frame.payload), 1, frame.op, frame.id, frame.incarnation)
            zeroed = frame.payload[:place] + bytes(4) + frame.payload[place + 4 :]
            assert struct.unpack_from("<I", frame.payload, flags)[0] & SUMMED
            assert struct.unpack_from("<I", frame.payload, place)[0] == crc32c(header + zeroed)
        return frame
