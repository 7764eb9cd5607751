"""A rank of the tests: does what a line on stdin says, a method's name of Rank and its arguments,
pickled.

    rank_process.py PLUGIN
"""

from __future__ import annotations

import base64
import pickle
import sys

from linkspan.nccl._rank import Rank


def main() -> None:
    rank = Rank(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        method, arguments = pickle.loads(base64.b64decode(line))
        try:
            answer = {"result": getattr(rank, method)(*arguments)}
        except RuntimeError as error:
            answer = {"error": str(error)}
        print(base64.b64encode(pickle.dumps(answer)).decode(), flush=True)


if __name__ == "__main__":
    main()
