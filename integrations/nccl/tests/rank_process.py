"""Ranks of the tests in one process, each with a comm: does what a line on stdin says, the number of
a rank, a method's name of Rank and its arguments, pickled.

    rank_process.py PLUGIN [RANKS]
"""

from __future__ import annotations

import base64
import concurrent.futures
import pickle
import sys

from linkspan.nccl import _rank


class Rank(_rank.Rank):
    def close_beside(self, receives: bool) -> None:
        """Does close() in a thread, whose end is_closed() tells."""
        self._closing = concurrent.futures.ThreadPoolExecutor().submit(self.close, receives)

    def is_closed(self) -> bool:
        if self._closing.done():
            self._closing.result()
        return self._closing.done()


def main() -> None:
    ranks = [Rank(sys.argv[1]) for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1)]
    print("ready", flush=True)
    for line in sys.stdin:
        number, method, arguments = pickle.loads(base64.b64decode(line))
        try:
            answer = {"result": getattr(ranks[number], method)(*arguments)}
        except RuntimeError as error:
            answer = {"error": str(error)}
        print(base64.b64encode(pickle.dumps(answer)).decode(), flush=True)


if __name__ == "__main__":
    main()
