"""What nixl 1.0.1 imports of torch."""


class Tensor:
    pass
