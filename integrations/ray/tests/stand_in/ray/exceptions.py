class RayDirectTransportError(Exception):
    pass
