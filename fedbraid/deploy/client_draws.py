"""Random draws that only the client knows, where its upload is to be hidden in a sum.

Training is a deterministic function of the start, the data and the seed, and the server knows the seed. If a run with
secure sums were started twice from the same seed, the second time without one site, the others would train the same
models again, and (n1 m1 - n2 m2) / n_a would be that site's model to the last digits. So a client whose upload is
hidden does not draw from the server's seed but from one that it derives from a secret of its own, a fresh one in every
run. The secret is on disk before it is used: a client that is killed draws the same again, and a resumed run ends with
the same model.
"""

from __future__ import annotations

import hashlib

from fedbraid.core.tree import Tree


def own_seed(secret: bytes, seed: int) -> int:
    """Return the seed that a client with this secret draws from where the server says `seed`."""
    digest = hashlib.sha256(b"fedbraid client draws" + secret + seed.to_bytes(8, "little")).digest()
    return int.from_bytes(digest[:8], "little") >> 1  # as all seeds, 63 bits


def digest_of(uploads: Tree) -> str:
    """Return what identifies these numbers, so that they are recognised if another run leads to the same again.

    That happens where nothing is drawn, such as with full batches (`local.batch=0`): then a secret seed does not help.
    """
    digest = hashlib.sha256()
    for key in sorted(uploads):
        tensor = uploads[key].detach().cpu().contiguous()
        digest.update(f"{key} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.flatten().view(-1).numpy().tobytes())
    return digest.hexdigest()
