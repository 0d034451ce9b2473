"""Low-rank gradients: a matrix travels as one or two thin factors.

Sources: Zhang et al., "Evaluation and Optimization of Gradient Compression for Distributed Deep
Learning", ICDCS 2023 (arXiv 2306.08881: ACP-SGD); Vogels et al., "PowerSGD", NeurIPS 2019, as
PyTorch has it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.futures import Future

from ....common.ranks import digest
from ..gradients.hooks import CommHook
from .base import Compressor, Item

__all__ = ["ACPSGD", "PowerSGD"]


class ACPSGD(Compressor):
    """Gradients as products of two factors, of which one travels in even steps, one in odd ones.

    One all-reduce a bucket. Vectors, and matrices that would not shrink to half, travel whole in
    the same message; of a supernet's matrices only the rows and columns in use do.

    Args:
        rank: columns of a factor; published are 4 for ResNets and 32 for BERT.
        start_step: steps at the start whose gradients travel whole.
        error_feedback: whether what is left out is kept.
        forget_after: see `Compressor`.
    """

    def __init__(
        self, rank: int = 4, start_step: int = 2, error_feedback: bool = True, forget_after: int = 0
    ) -> None:
        super().__init__(start_step, error_feedback, forget_after)
        if rank < 1:
            raise ValueError(f"rank {rank}: must be at least 1")
        self.factor_rank = rank

    def setup(self, model: nn.Module, device: torch.device) -> None:
        """Begin without factors; each parameter's are made when it is first used."""
        super().setup(model, device)
        self.factors: dict[str, tuple[Tensor, Tensor]] = {}
        self.turns: dict[str, int] = {}

    def average(self, items: list[Item]) -> None:
        """Average one factor of each matrix, in turn, and whole what is too small to shrink."""
        pieces: list[Tensor] = []
        plans: list[tuple[Tensor, Tensor, Tensor, bool] | None] = []
        for name, gradient in items:
            if not self._shrinks(gradient):
                pieces.append(gradient.float().flatten())
                plans.append(None)
                continue
            matrix = gradient.float().flatten(1)  # of the bucket itself where it can be
            if name in self.residuals:
                matrix += self.used(name, self.residuals[name]).flatten(1)
            p, q = self._factors(name, matrix)
            even = self.turns.get(name, 0) % 2 == 0
            fixed = torch.linalg.qr(q if even else p).Q
            sent = matrix @ fixed if even else matrix.T @ fixed
            pieces.append(sent.flatten())
            plans.append((matrix, sent, fixed, even))
        flat = self.all_reduced(torch.cat(pieces))
        finite = bool(torch.isfinite(flat).all())
        parts = flat.split([piece.numel() for piece in pieces])
        for (name, gradient), plan, part in zip(items, plans, parts, strict=True):
            if plan is None:
                gradient.copy_(part.view_as(gradient))
                continue
            matrix, sent, fixed, even = plan
            mean = part.view_as(sent)
            p, q = (mean, fixed) if even else (fixed, mean)
            if finite:
                self._keep_rest(name, gradient, matrix, (sent, fixed) if even else (fixed, sent))
                rows, columns = self._places(name)
                self.factors[name][0][rows] = p
                self.factors[name][1][columns] = q
                self.turns[name] = self.turns.get(name, 0) + 1
            torch.mm(p, q.T, out=matrix)
            if matrix.data_ptr() != gradient.data_ptr():
                gradient.copy_(matrix.view_as(gradient))

    def begin_anew(self) -> None:
        """Forget the factors besides what was left out, and whose turn it is."""
        super().begin_anew()
        self.factors, self.turns = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """The factors besides what was left out, and whose turn it is."""
        factors = {name: [factor.clone() for factor in pair] for name, pair in self.factors.items()}
        return {**super().state_dict(), "factors": factors, "turns": dict(self.turns)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take copies of the factors, which change in place, to the gradients' device."""
        super().load_state_dict(state)
        self.turns = dict(state["turns"])
        self.factors = {
            name: (p.to(self.device, copy=True), q.to(self.device, copy=True))
            for name, (p, q) in state["factors"].items()
        }

    def _shrinks(self, gradient: Tensor) -> bool:
        if gradient.dim() < 2:
            return False
        n, m = gradient.shape[0], gradient[0].numel()
        return min(self.factor_rank, n, m) * (n + m) * 2 < n * m

    def _factors(self, name: str, matrix: Tensor) -> tuple[Tensor, Tensor]:
        if name not in self.factors:
            # Seeded by the name: all processes begin with the same, whatever their own seeds.
            generator = torch.Generator().manual_seed(digest(name))
            shape = self.shapes[name]
            sizes = shape[0], shape[1:].numel()
            rank = min(self.factor_rank, *sizes)
            p, q = (torch.randn(size, rank, generator=generator) for size in sizes)
            self.factors[name] = p.to(matrix), q.to(matrix)
        rows, columns = self._places(name)
        p, q = self.factors[name]
        return p[rows], q[columns]

    def _keep_rest(
        self, name: str, gradient: Tensor, matrix: Tensor, factors: tuple[Tensor, Tensor]
    ) -> None:
        """Keep what the factors leave of a matrix, where the rest of the last step was."""
        p, q = factors
        if name in self.residuals and name not in self.grids:
            torch.addmm(matrix, p, q.T, alpha=-1, out=self.residuals[name].view_as(matrix))
        elif self.error_feedback:
            self.keep(name, torch.addmm(matrix, p, q.T, alpha=-1).view_as(gradient))

    def _places(self, name: str) -> tuple[Tensor | slice, Tensor | slice]:
        """Rows and columns of a matrix that the step uses."""
        if name not in self.grids:
            return slice(None), slice(None)
        first, *others = self.grids[name]
        columns = torch.arange(self.shapes[name][1:].numel(), device=self.device)
        return first.flatten(), columns.view(self.shapes[name][1:])[tuple(others)].flatten()


class PowerSGD(CommHook):
    """PyTorch's PowerSGD hook.

    It keeps its state by bucket, so it cannot train supernets; and it sends from callbacks, so on
    a CPU all gradients have to be in one bucket, which `HookDDPStrategy` sees to. A training that
    resumes has other buckets: what was left out and the factors are lost, and two steps travel
    whole. It knows nothing of scaled losses: take `bf16-mixed` instead of `16-mixed`.

    Args:
        rank: columns of a factor.
        start_step: steps at the start whose gradients travel whole; at least 2, until buckets
            are made anew.
        error_feedback: whether what is left out is kept.
    """

    single_bucket = True
    takes_scaler = False

    def __init__(self, rank: int = 4, start_step: int = 10, error_feedback: bool = True) -> None:
        if rank < 1 or start_step < 2:
            raise ValueError(f"rank {rank} and start_step {start_step}: at least 1 and 2")
        self.arguments: dict[str, Any] = {
            "matrix_approximation_rank": rank,
            "start_powerSGD_iter": start_step,
            "use_error_feedback": error_feedback,
        }
        self.error_feedback = True  # a checkpoint has the step, with or without it

    def setup(self, model: nn.Module, device: torch.device) -> None:
        """Begin PyTorch's own state anew."""
        super().setup(model, device)
        self.state = power.PowerSGDState(process_group=None, **self.arguments)

    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Average a bucket by PyTorch's hook; on a CPU there has to be one bucket."""
        if self.device.type == "cpu" and not (bucket.index() == 0 and bucket.is_last()):
            if self.state.iter >= self.arguments["start_powerSGD_iter"]:
                raise ValueError("powersgd on a CPU needs one bucket: give a larger bucket_cap_mb")
        before = self.state.total_numel_after_compression
        whole = self.state.iter < self.arguments["start_powerSGD_iter"]
        future = power.powerSGD_hook(self.state, bucket)
        compressed = self.state.total_numel_after_compression - before
        self.count_all_reduce(4 * (bucket.buffer().numel() if whole else compressed))
        return future

    def state_dict(self) -> dict[str, Any]:
        """The number of steps alone, since the rest belongs to buckets."""
        return {"step": self.state.iter}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the number of steps; what belongs to buckets begins anew, as they do."""
        whole = self.arguments["start_powerSGD_iter"] - 2
        if state["step"] > whole:
            rank_zero_warn(
                "powersgd keeps its state by bucket and has none of this checkpoint: two steps "
                "travel whole, then it begins anew"
            )
        self.state.iter = min(state["step"], whole)
