"""K-FAC: second-order steps from Kronecker factors of the curvature of each layer.

Sources: Martens and Grosse, "Optimizing Neural Networks with Kronecker-factored Approximate
Curvature", ICML 2015 (arXiv 1503.05671), and Grosse and Martens for convolutions (ICML 2016, arXiv
1602.01407); owners that see only their own samples: Zhang et al., "Scalable K-FAC Training for Deep
Neural Networks with Distributed Preconditioning" (DP-KFAC, arXiv 2206.15143); who inverts what: Shi
et al., "Accelerating Distributed K-FAC with Smart Parallelism of Computing and Communication
Tasks" (SPD-KFAC, ICDCS 2021, arXiv 2107.06533).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from .factors import (
    balanced,
    decompose,
    eigen_gradient,
    measured_costs,
    pack,
    pi_damping,
    place_matrices,
    unpack,
)
from .layers import Layer
from .second_order import Preconditioner

__all__ = ["KFACPreconditioner"]


class KFACPreconditioner(Preconditioner):
    """Preconditions the gradients of linear and convolutional layers by K-FAC.

    A callback of any training but a supernet's: `trainer.callbacks`. For each layer it averages
    A = E[a a^T] of inputs (patches of a convolution) and G = E[b b^T] of gradients of outputs, over
    samples and positions. What `Preconditioner` leaves out keeps its gradient: normalisations,
    embeddings, grouped and transposed convolutions.

    Everything goes into checkpoints. With `owner-local` they are gathered on the first process, so
    all processes have to save together, as Lightning's do.

    Args:
        form: `eigen` applies (G (x) A + damping I)^-1 exactly; `inverse` is cheaper and damps each
            factor, (A + pi sqrt(damping) I) and (G + sqrt(damping) / pi I): another operator.
        distribute: on several processes, `replicate` averages factors over all and decomposes on
            all; `owner` averages, and each matrix is decomposed by one process and sent to the
            others, unless sending it takes longer; with `owner-local` a layer belongs to one
            process, which averages its own samples' factors, stores and decomposes them, and sends
            the preconditioned gradient in each step.
        damping: see `Preconditioner`.
        kl_clip: likewise.
        momentum: weight of the new in the averages of factors, which start with the first.
        factor_every: steps between updates of the averages.
        inverse_every: steps between decompositions; each comes with an update of the averages.

    Raises:
        ValueError: a setting is out of its range, or the training does not fit, see
            `Preconditioner`; in training where factors cannot be decomposed.
    """

    degree = 2

    def __init__(
        self,
        form: Literal["eigen", "inverse"] = "eigen",
        distribute: Literal["replicate", "owner", "owner-local"] = "replicate",
        damping: float = 0.03,
        kl_clip: float = 0.001,
        momentum: float = 0.95,
        factor_every: int = 10,
        inverse_every: int = 100,
    ) -> None:
        super().__init__(damping, kl_clip, momentum)
        if form not in ("eigen", "inverse"):
            raise ValueError(f"form {form!r}: choose eigen or inverse")
        if distribute not in ("replicate", "owner", "owner-local"):
            raise ValueError(f"distribute {distribute!r}: choose replicate, owner or owner-local")
        if min(factor_every, inverse_every) < 1:
            raise ValueError(
                f"factor_every {factor_every} and inverse_every {inverse_every}: at least 1"
            )
        self.form = form
        self.distribute = distribute
        self.factor_every = factor_every
        self.inverse_every = inverse_every
        self.moments: dict[str, Tensor] = {}
        self.solvers: dict[str, tuple[list[Tensor], ...]] = {}

    def wants(self) -> bool:
        """Whether factors are due, or none is known yet."""
        return self.step % self.factor_every == 0 or not any(self._known)

    def entries(self, layer: Layer) -> tuple[int, int]:
        """Numbers of entries in the upper triangles of A and G."""
        a, g = (n * (n + 1) // 2 for n in (layer.inputs, layer.outputs))
        return a, g

    def observe(self, layer: Layer, x: Tensor) -> Tensor | None:
        """The upper triangle of the mean of a a^T, of this process's layers."""
        return pack(layer.input_moment(x)) if self._mine(layer) else None

    def respond(self, layer: Layer, gradient: Tensor) -> Tensor:
        """The upper triangle of the mean of b b^T."""
        rows = layer.output_rows(gradient)
        return pack(rows.T @ rows / len(rows))

    def start(self, state: dict[str, Any]) -> None:
        """Share the layers out, and go on with what a checkpoint brought of this process's."""
        self.step = state.get("step", 0)
        self._place()
        mine = {layer.name for layer in self.layers if self._mine(layer)}
        moments = state.get("moments", {})
        solvers = state.get("solvers", {}) if state.get("form") == self.form else {}
        # A snapshot brings each process what it owns alone.
        self._known = self._of_any([layer.name in solvers for layer in self.layers])
        self.moments = {n: moments[n].to(self.device) for n in moments.keys() & mine}
        self.solvers = {
            name: tuple([t.to(self.device) for t in side] for side in solvers[name])
            for name in solvers.keys() & mine
        }

    def update(self) -> None:
        """Average the factors, and decompose those that are due."""
        alone = self.distribute == "owner-local"
        layers = [layer for layer in self.layers if self._mine(layer)]
        values, counts = self.message(layers, shared=not alone)
        parts = values.split([sum(self.entries(layer)) for layer in layers])
        for layer, part, count in zip(layers, parts, counts.tolist(), strict=True):
            if count:
                average = self.moments.setdefault(layer.name, part / count)
                average.lerp_(part / count, self.momentum)
        # The first update at or behind a multiple of `inverse_every`, which need not be one itself.
        now = self.step % self.inverse_every < self.factor_every
        # A layer that is used for the first time does not wait.
        due = [
            layer
            for layer in self.layers
            if layer.name in self.moments and (now or layer.name not in self.solvers)
        ]
        error = self._decompose(due)
        flags = [layer.name in self.solvers for layer in self.layers]
        *self._known, failed = self._of_any([*flags, error is not None])
        if failed:  # together: the others would wait for one that raises alone
            raise error or ValueError(
                "a factor of the curvature cannot be decomposed in another process: take a smaller "
                "learning rate or more damping"
            )

    def precondition(self, layers: list[Layer], gradients: list[Tensor]) -> list[Tensor]:
        """Solve with the decompositions; owners send what is theirs to the others."""
        solved = [
            self._solve(layer, gradient) if layer.name in self.solvers else gradient
            for layer, gradient in zip(layers, gradients, strict=True)
        ]
        if self.distribute != "owner-local" or self.world_size == 1:
            return solved
        theirs: list[list[int]] = [[] for _ in range(self.world_size)]
        for index, layer in enumerate(layers):
            theirs[self._owners[layer.index]].append(index)
        sizes = [[solved[index].numel() for index in places] for places in theirs]
        message = torch.zeros(max(map(sum, sizes)), dtype=self.dtype, device=self.device)
        parts = message[: sum(sizes[self.rank])].split(sizes[self.rank])
        for index, part in zip(theirs[self.rank], parts, strict=True):
            part.copy_(solved[index].flatten())
        received = [torch.empty_like(message) for _ in sizes]
        dist.all_gather(received, message)
        for places, counts, row in zip(theirs, sizes, received, strict=True):
            for index, part in zip(places, row[: sum(counts)].split(counts), strict=True):
                solved[index] = part.view_as(solved[index])
        return solved

    def state_dict(self) -> dict[str, Any]:
        """The averages, their decompositions and the number of steps, of all layers."""
        if not self.moments and self._resumed:
            return self._resumed
        moments = {name: value.cpu().clone() for name, value in self.moments.items()}
        solvers = {
            name: tuple([t.cpu() for t in side] for side in sides)
            for name, sides in self.solvers.items()
        }
        if self.distribute == "owner-local" and dist.is_initialized():
            rank, world_size = dist.get_rank(), dist.get_world_size()
            gathered: list[Any] | None = [None] * world_size if rank == 0 else None
            dist.gather_object((moments, solvers), gathered)
            for other in gathered or []:
                moments |= other[0]
                solvers |= other[1]
        return {"step": self.step, "form": self.form, "moments": moments, "solvers": solvers}

    def _place(self) -> None:
        """Give each layer, or each matrix (A and G of the layers in turn), to a process or all."""
        sizes = [(layer.inputs, layer.outputs) for layer in self.layers]
        self._owners = [self.rank] * len(sizes)
        self._matrix_owners: list[int | None] = [None] * (2 * len(sizes))
        if self.world_size > 1 and self.distribute == "owner-local":
            self._owners = balanced([a**3 + g**3 for a, g in sizes], self.world_size)
        elif self.world_size > 1 and self.distribute == "owner":
            self._matrix_owners = place_matrices(
                [size for both in sizes for size in both],
                self.world_size,
                *measured_costs(self.form, self.device),
            )

    def _of_any(self, flags: list[bool]) -> list[bool]:
        """Which flags are set in this process, or in any where each has its own layers."""
        agreed = torch.tensor(flags, dtype=torch.float32)
        if self.distribute != "replicate" and self.world_size > 1:
            agreed = agreed.to(self.device)
            dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
        return agreed.bool().tolist()

    def _mine(self, layer: Layer) -> bool:
        return self._owners[layer.index] == self.rank

    def _decompose(self, layers: list[Layer]) -> ValueError | None:
        """Decompose the averages of layers; what failed is told when all has been sent."""
        failed = None
        sent: list[list[Tensor]] = [[] for _ in range(self.world_size)]
        for layer in layers:
            triangles = self.moments[layer.name].split(self.entries(layer))
            a, g = factors = [unpack(triangle) for triangle in triangles]
            sides = []
            for side, damping in enumerate(pi_damping(a, g, self.damping)):
                owner = self._matrix_owners[2 * layer.index + side]
                solver = [torch.empty_like(factors[side])]
                solver += [torch.empty_like(factors[side][0])] * (self.form == "eigen")
                if owner in (None, self.rank):
                    try:
                        solver = decompose(factors[side], self.form, damping)
                    except ValueError as error:
                        failed = error
                sides.append(solver)
                if owner is not None:
                    sent[owner] += solver
            self.solvers[layer.name] = tuple(sides)
        for owner, tensors in enumerate(sent):
            self._send(tensors, owner)
        return failed

    def _send(self, tensors: list[Tensor], owner: int) -> None:
        if not tensors:
            return
        # Inverses are symmetric, eigenvectors are not.
        there, back = (pack, unpack) if self.form == "inverse" else (torch.flatten, None)
        message = torch.cat([there(tensor) for tensor in tensors])
        dist.broadcast(message, owner)
        if owner == self.rank:
            return
        parts = message.split([there(tensor).numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(back(part) if back else part.view_as(tensor))

    def _solve(self, layer: Layer, gradient: Tensor) -> Tensor:
        a, g = self.solvers[layer.name]
        if self.form == "eigen":
            return eigen_gradient(gradient, a, g, self.damping)
        return g[0] @ gradient @ a[0]
