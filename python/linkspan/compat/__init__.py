"""Names of other programs over linkspan: linkspan.compat.ipc has send_ipc and recv_ipc."""
