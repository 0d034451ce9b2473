"""What the processes of the tests of second-order preconditioners do; plain values come back."""

from __future__ import annotations

import torch
from distributed_training import trainer, weights
from toy_volumes import Task, Volumes

from vizoo.common.ranks import tensor_digest
from vizoo.nas.distributed import Eva, HookDDPStrategy, KFACPreconditioner
from vizoo.nas.distributed.curvature import kfac
from vizoo.nas.distributed.curvature.factors import measured_costs, pack

FACTORS = {"kl_clip": 0, "factor_every": 1, "inverse_every": 2}
KINDS = {
    "eva": lambda damping: Eva(damping, kl_clip=0),
    "eigen": lambda damping: KFACPreconditioner(damping=damping, **FACTORS),
    "inverse": lambda damping: KFACPreconditioner("inverse", "owner", damping=damping, **FACTORS),
    "owner": lambda damping: KFACPreconditioner("eigen", "owner", damping=damping, **FACTORS),
}


class Watched(Task):
    """Also keeps a digest of the gradients of each step."""

    def __init__(self):
        super().__init__()
        self.digests = []

    def configure_gradient_clipping(self, optimizer, **settings):
        self.digests.append(tensor_digest(p.grad for p in optimizer.param_groups[0]["params"][:-2]))


def fit(callback, processes, epochs=2, batch=24, checkpoint=None):
    """Train on batches of so many samples over all processes."""
    torch.manual_seed(0)
    task = Watched()
    strategy = "auto"
    if processes > 1:
        # The layer that is not used has no gradient anywhere.
        more = {"process_group_backend": "gloo", "find_unused_parameters": True}
        strategy = HookDDPStrategy(**more)
    found = trainer(strategy, processes, max_epochs=epochs, callbacks=[callback])
    found.fit(task, Volumes(batch_size=batch // processes), ckpt_path=checkpoint)
    return found, task


def second_order(rank, processes):
    """By kind: weights, digests of gradients in each step, what was averaged in the first."""
    # Some matrices are decomposed by one process, the others by all.
    kfac.measured_costs = lambda *_: (lambda n: float(n**3), lambda n: 1e3)
    found = {}
    for kind, make in KINDS.items():
        callback = make(0.01 * processes**2)
        fit(callback, processes, 1)
        state = callback.state_dict()
        if kind == "eva":
            first = {name: [v.tolist() for v in both] for name, both in state.items()}
        else:
            first = {name: value.tolist() for name, value in state["moments"].items()}
        _, task = fit(make(0.01 * processes**2), processes, 3)
        found[kind] = weights(task.net).tolist(), task.digests, first
    return found


def failing(rank, distribute):
    """What is said where the second process cannot decompose what it owns."""
    kfac.measured_costs = lambda *_: (lambda n: float(n**3), lambda n: 0.0)
    if rank == 1:

        def decompose(*_):
            raise ValueError("it fails here")

        kfac.decompose = decompose
    try:
        fit(KFACPreconditioner("eigen", distribute, **FACTORS), 2, 1)
    except ValueError as error:
        return str(error)


def owners(rank, folder):
    """Owner-local: weights, digests, what is stored here, whether it is of own samples; resumed."""

    def make(**settings):
        settings = {"damping": 0.01, **FACTORS, **settings}
        return KFACPreconditioner("eigen", "owner-local", **settings)

    callback = make()
    fit(callback, 2, 1)
    own = None
    if "net.first" in callback.moments:
        data = Volumes(batch_size=12)
        x = data.train[rank::2][0]
        layer = callback.layers[0]
        moment = pack(layer.input_moment(x))
        own = (callback.moments["net.first"][: len(moment)] - moment).abs().max().item()
    saved, _ = fit(make(), 2, 3)
    saved.save_checkpoint(f"{folder}/half.ckpt")
    whole, task = fit(make(), 2, 5)
    _, again = fit(make(), 2, 5, checkpoint=f"{folder}/half.ckpt")
    kept = make(factor_every=9)  # no factors are due in the next step
    kept.load_state_dict(callback.state_dict())
    _, restarted = fit(kept, 2, 1)
    return {
        "stored": sorted(callback.moments),
        "solved": sorted(callback.solvers),
        "own": own,
        "digests": task.digests,
        "whole": weights(task.net).tolist(),
        "again": weights(again.net).tolist(),
        "restarted": restarted.digests,
        "owners": callback._owners,
        "costs": [cost(512) for cost in measured_costs("eigen", torch.device("cpu"))],
    }
