"""Two actors: one makes a tensor, the other reads it by linkspan; then the first one is killed.

    PYTHONPATH=out/release/python python3 integrations/ray/example.py

Uses torch, or numpy if torch is not installed.
"""

import linkspan.ray
import ray

try:
    import torch

    TYPE, arange = torch.Tensor, torch.arange
except ImportError:
    import numpy

    TYPE, arange = numpy.ndarray, numpy.arange
COUNT = 1 << 20

linkspan.ray.register(TYPE)  # before the decorators name it


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Trainer:
    @ray.method(tensor_transport="linkspan")
    def weights(self):
        return arange(COUNT)

    def ready(self):
        return True


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Server:
    def total(self, weights):
        return int(weights.sum())


def main() -> None:
    ray.init(num_cpus=1, include_dashboard=False, configure_logging=False)
    trainer, server = Trainer.remote(), Server.remote()
    expected = COUNT * (COUNT - 1) // 2
    weights = trainer.weights.remote()
    assert ray.get(server.total.remote(weights), timeout=60) == expected
    assert int(ray.get(weights, timeout=60).sum()) == expected  # the driver reads, too

    ray.kill(trainer)
    try:
        ray.get(trainer.ready.remote(), timeout=60)  # until it is dead
    except ray.exceptions.RayActorError:
        pass
    try:
        ray.get(server.total.remote(weights), timeout=60)
        raise SystemExit("the tensor of a killed actor was read")
    except ray.exceptions.RayError as error:
        print(f"the trainer was killed: {type(error).__name__}")
    assert ray.get(server.total.remote(arange(3)), timeout=60) == 3  # not killed with it
    ray.shutdown()
    print(f"{TYPE.__module__}: verified")


if __name__ == "__main__":
    main()
