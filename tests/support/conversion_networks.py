"""Small networks, each with one way in which channels depend on each other."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from vizoo.vision import ops


def layer(n_in: int, n_out: int, kernel: int = 3, **more: int) -> nn.Sequential:
    """Convolution, normalisation, activation."""
    convolution = nn.Conv2d(n_in, n_out, kernel, padding=kernel // 2, bias=False, **more)
    return nn.Sequential(convolution, nn.BatchNorm2d(n_out), nn.ReLU())


class Small(nn.Module):
    """A first layer to 16 channels, something in between, a pooled classifier."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.first = layer(3, 16)
        self.head = nn.Linear(width, 5)

    def between(self, x):
        return x

    def forward(self, image):
        return self.head(self.between(self.first(image)).mean((2, 3)))


class Residual(Small):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(layer(16, 24), nn.Conv2d(24, 16, 1))

    def between(self, x):
        return F.relu(x + self.block(x))


class Concatenated(Small):
    def __init__(self):
        super().__init__(40)
        self.one, self.other = layer(16, 24), layer(40, 40, groups=1)

    def between(self, x):
        return self.other(torch.cat([x, self.one(x)], 1))


class Depthwise(Small):
    def __init__(self):
        super().__init__(32)
        self.each = layer(16, 32, 5, groups=16)  # two for each channel

    def between(self, x):
        return self.each(x)


class Grouped(Small):
    def __init__(self):
        super().__init__(32)
        self.groups, self.after = layer(16, 64, groups=4), layer(64, 32, 1)

    def between(self, x):
        return self.after(self.groups(x))


class GroupNormed(Small):
    def __init__(self):
        super().__init__()
        self.normed = nn.Sequential(nn.Conv2d(16, 16, 3), nn.GroupNorm(4, 16), nn.PReLU(16))

    def between(self, x):
        return self.normed(x)


class InstanceNormed(Small):
    def __init__(self):
        super().__init__()
        self.normed = nn.Sequential(nn.Conv2d(16, 16, 3), nn.InstanceNorm2d(16, affine=True))

    def between(self, x):
        return self.normed(x)


class SqueezeExcite(Small):
    """Attention to channels, and to places: one number for all channels of each."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 1)
        self.place = nn.Conv2d(2, 1, 7, padding=3)

    def between(self, x):
        x = x * self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))).sigmoid()
        found = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return self.place(found).sigmoid() * x


class Shuffled(Small):
    def __init__(self):
        super().__init__()
        self.groups = layer(16, 32, 1, groups=2)
        self.after = layer(32, 16, 1, groups=2)

    def between(self, x):
        x = self.groups(x)
        x = x.view(len(x), 2, x.shape[1] // 2, *x.shape[2:]).transpose(1, 2).flatten(1, 2)
        return self.after(x)


class Split(Small):
    def __init__(self):
        super().__init__()
        self.wide, self.one = layer(16, 32), layer(16, 16)

    def between(self, x):
        left, right = self.wide(x).chunk(2, 1)
        return self.one(left) * right


class PixelShuffled(Small):
    def __init__(self):
        super().__init__(8)
        self.wide = nn.Conv2d(16, 32, 1)

    def between(self, x):
        return F.pixel_shuffle(self.wide(x), 2)


class Flattened(Small):
    def __init__(self):
        super().__init__()
        self.second, self.head = nn.Conv2d(16, 8, 3, stride=4), nn.Linear(8 * 4 * 4, 5)

    def forward(self, image):
        return self.head(F.max_pool2d(self.second(self.first(image)), 1).flatten(1))


class Shared(Small):
    """One layer that runs twice."""

    def __init__(self):
        super().__init__()
        self.again = layer(16, 16)

    def between(self, x):
        return self.again(self.again(x))


class Transposed(Small):
    def __init__(self):
        super().__init__(12)
        self.up = nn.ConvTranspose2d(16, 24, 4, 2, 1)
        self.grouped = nn.ConvTranspose2d(24, 24, 2, 2, groups=3)
        self.each = nn.ConvTranspose2d(24, 24, 2, 2, groups=24)
        self.after = nn.Conv2d(24, 12, 1)

    def between(self, x):
        return self.after(self.each(self.grouped(self.up(x))))


class Scaled(Small):
    """Parameters of the network's own: a scale for each channel."""

    def __init__(self):
        super().__init__()
        self.block = layer(16, 16)
        self.scale = nn.Parameter(torch.rand(16, 1, 1))

    def between(self, x):
        return x + self.scale * self.block(x)


class Attention(nn.Module):
    """Heads as in vision transformers."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        shape = (*x.shape[:2], 3, self.num_heads, self.head_dim)
        q, k, v = self.qkv(x).reshape(shape).permute(2, 0, 3, 1, 4)
        x = F.softmax(q @ k.mT * self.head_dim**-0.5, -1) @ v
        return self.proj(x.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Of a vision transformer."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 32))
        self.places = nn.Parameter(torch.randn(1, 17, 32))
        self.blocks = nn.ModuleList([Block(32, 4) for _ in range(4)])
        self.head = nn.Linear(32, 5)

    def forward(self, image):
        x = self.patches(image).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class Biased(Attention):
    """Places that are far from each other count less, in each head as it learnt."""

    def __init__(self, width: int, heads: int):
        super().__init__(width, heads)
        self.fused = False
        self.table = nn.Parameter(torch.randn(5, heads))
        self.register_buffer("distance", (torch.arange(17)[:, None] - torch.arange(17)).abs() // 4)

    def forward(self, x):
        shape = (*x.shape[:2], 3, self.num_heads, self.head_dim)
        q, k, v = self.qkv(x).reshape(shape).permute(2, 0, 3, 1, 4)
        bias = self.table[self.distance.view(-1)].view(17, 17, -1).permute(2, 0, 1)[None]
        if self.fused:
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            x = F.softmax(q @ k.mT * self.head_dim**-0.5 + bias, -1) @ v
        return self.proj(x.transpose(1, 2).flatten(2))


class Places(Transformer):
    """Attention with biases, added to products and given as a mask."""

    def __init__(self):
        super().__init__()
        for index, block in enumerate(self.blocks):
            block.attention = Biased(32, 4)
            block.attention.fused = index % 2 == 1


class Volumes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(3, 16, 5, padding=2), nn.BatchNorm3d(16), nn.ReLU())
        self.each = nn.Conv3d(16, 16, 3, padding=1, groups=16)
        self.last = nn.Conv3d(16, 2, 1)

    def forward(self, image):
        return self.last(F.avg_pool3d(self.each(self.first(image[:, :, None])), (1, 2, 2)))


class Deep(Small):
    """Sequences whose blocks give what they take."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(layer(16, 16, 7), layer(16, 16), layer(16, 16), layer(16, 16))

    def between(self, x):
        return self.blocks(x)


class Scales(Small):
    """Pieces of a size that the module holds, each told by the one before."""

    def __init__(self):
        super().__init__(24)
        self.width = 8
        self.wide = layer(16, 24)
        self.each = nn.ModuleList(layer(8, 8) for _ in range(3))

    def between(self, x):
        pieces, last = [], 0
        for one, piece in zip(self.each, self.wide(x).split(self.width, 1), strict=True):
            pieces.append(last := one(piece + last))
        return torch.cat(pieces, 1)


class Levels(Small):
    """Blocks that take and give two tensors, of different sizes."""

    class Exchange(nn.Module):
        def __init__(self):
            super().__init__()
            self.fine, self.coarse = layer(16, 16), layer(16, 16)

        def forward(self, levels):
            fine, coarse = levels
            return [self.fine(fine) + F.interpolate(coarse, fine.shape[2:]), self.coarse(coarse)]

    def __init__(self):
        super().__init__()
        self.exchanges = nn.Sequential(*(self.Exchange() for _ in range(3)))

    def between(self, x):
        return sum(
            level.mean((2, 3), keepdim=True) for level in self.exchanges([x, x[..., ::2, ::2]])
        )


class Matched(Small):
    """Features of two views that are correlated, and warped."""

    def __init__(self):
        super().__init__(4 + 32)

    def between(self, x):
        other = ops.warp_by_disparity(x, torch.ones_like(x.mean(1, keepdim=True)))
        volume = ops.concat_volume(x, other, 3).mean(2)
        return torch.cat([ops.correlation(x, other, 4), volume], 1)


EVERY = [Residual, Concatenated, Depthwise, Grouped, GroupNormed, InstanceNormed, SqueezeExcite]
EVERY += [Shuffled, Split, PixelShuffled, Flattened, Shared, Transposed, Scaled, Transformer]
EVERY += [Places, Volumes, Deep, Levels, Matched, Scales]
