"""Training-free metrics of NAS-Bench-201 in plain PyTorch: what nasjax is timed against.

Each metric is computed by itself, in the way that public implementations have: a network, a pass
forward and back, hooks for what lies inside. ``python benchmarks/scoring.py --peer`` runs this.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

EDGES = ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2))


def _block(channels, features, size, stride=1):
    conv = nn.Conv2d(channels, features, size, stride, size // 2, bias=False)
    return nn.Sequential(nn.ReLU(), conv, nn.BatchNorm2d(features, affine=False))


def _operation(index, channels):
    if index == 1:
        return nn.Identity()
    if index == 4:
        return nn.AvgPool2d(3, 1, 1, count_include_pad=False)
    return _block(channels, channels, 1 if index == 2 else 3)


def _used_edges(genotype):
    """Edges between what the input reaches and what reaches the output; they are in order."""
    reached, reaching = {0}, {3}
    edges = [(edge, ends) for edge, ends in enumerate(EDGES) if genotype[edge]]
    for _, (target, source) in edges:
        if source in reached:
            reached.add(target)
    for _, (target, source) in reversed(edges):
        if target in reaching:
            reaching.add(source)
    return [(edge, ends) for edge, ends in edges if ends[1] in reached and ends[0] in reaching]


class _Cell(nn.Module):
    def __init__(self, genotype, channels):
        super().__init__()
        self.edges = _used_edges(genotype)
        self.operations = nn.ModuleDict(
            {str(edge): _operation(genotype[edge], channels) for edge, _ in self.edges}
        )

    def forward(self, x):
        nodes = [x, 0, 0, 0]
        for edge, (target, source) in self.edges:
            nodes[target] = nodes[target] + self.operations[str(edge)](nodes[source])
        return nodes[3]


class _Reduction(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.branch = nn.Sequential(
            _block(channels, 2 * channels, 3, 2), _block(2 * channels, 2 * channels, 3)
        )
        conv = nn.Conv2d(channels, 2 * channels, 1, bias=False)
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), conv)

    def forward(self, x):
        return self.branch(x) + self.shortcut(x)


def network(genotype, channels, num_cells, num_classes):
    """The benchmark's network of a cell."""
    stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
    parts = [stem, nn.BatchNorm2d(channels, affine=False)]
    for stage in range(3):
        if stage:
            parts.append(_Reduction(channels * 2 ** (stage - 1)))
        parts += [_Cell(genotype, channels * 2**stage) for _ in range(num_cells)]
    features = 4 * channels
    parts += [nn.BatchNorm2d(features, affine=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(features, num_classes))


def _layers(net):
    return [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]


def _weights(net):
    return [layer.weight for layer in _layers(net)]


def _loss(net, x, y):
    return functional.cross_entropy(net(x), y)


def grad_norm(net, x, y):
    """Norms of the gradients of all layers, and their sum."""
    return sum(g.norm() for g in torch.autograd.grad(_loss(net, x, y), _weights(net)))


def snip(net, x, y):
    """Magnitudes of gradients times weights."""
    weights = _weights(net)
    gradients = torch.autograd.grad(_loss(net, x, y), weights)
    return sum((g * w).abs().sum() for g, w in zip(gradients, weights, strict=True))


def grasp(net, x, y):
    """Weights times the Hessian's product with the gradient."""
    weights = _weights(net)
    first = torch.autograd.grad(_loss(net, x, y), weights)
    second = torch.autograd.grad(_loss(net, x, y), weights, create_graph=True)
    product = sum((a.detach() * b).sum() for a, b in zip(first, second, strict=True))
    moved = torch.autograd.grad(product, weights)
    return sum(-(h * w).sum() for h, w in zip(moved, weights, strict=True))


def _hooked(net):
    """A dictionary of what layers read and give, which the next pass forward fills."""
    kept = {}

    def keep(layer, inputs, output):
        kept[layer] = inputs[0], output

    for layer in _layers(net):
        layer.register_forward_hook(keep)
    return kept


def kernel(net, x, y):
    """Trace and condition number of the tangent kernel, each example's share of one pass back."""
    kept = _hooked(net)
    outputs = net(x)[torch.arange(len(y)), y].sum()
    cotangents = torch.autograd.grad(outputs, [output for _, output in kept.values()])
    total = 0
    for (layer, (source, _)), g in zip(kept.items(), cotangents, strict=True):
        if isinstance(layer, nn.Conv2d):
            patches = functional.unfold(
                source, layer.kernel_size, padding=layer.padding, stride=layer.stride
            )
            gradients = torch.bmm(g.flatten(2), patches.transpose(1, 2)).flatten(1)
        else:
            gradients = (g[:, :, None] * source[:, None]).flatten(1)
        total = total + gradients @ gradients.T
    eigenvalues = torch.linalg.eigvalsh(total)
    return total.trace() + eigenvalues[-1] / eigenvalues[0]


def fisher(net, x, y):
    """Squared products of outputs and their cotangents, channel by channel."""
    kept = _hooked(net)
    loss = _loss(net, x, y)
    outputs = [output for _, output in kept.values()]
    total = 0
    for output, g in zip(outputs, torch.autograd.grad(loss, outputs), strict=True):
        pixels = (output * g).reshape(*g.shape[:2], -1).sum(-1)
        total = total + (pixels**2).mean(0).sum() / 2
    return total


def synflow(net, x, y):
    """Weights times gradients of the network of magnitudes, in double precision as is usual."""
    net = net.double()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.forward = lambda x: x
    weights = _weights(net)
    with torch.no_grad():
        for weight in weights:
            weight.abs_()
    gradients = torch.autograd.grad(net(torch.ones_like(x[:1]).double()).sum(), weights)
    return sum((g * w).sum() for g, w in zip(gradients, weights, strict=True))


@torch.no_grad()
def naswot(net, x, y):
    """The log-determinant of agreements between ReLU patterns."""
    total = 0

    def count(layer, inputs, output):
        nonlocal total
        on = (inputs[0].flatten(1) > 0).float()
        total = total + on @ on.T + (1 - on) @ (1 - on).T

    for layer in net.modules():
        if isinstance(layer, nn.ReLU):
            layer.register_forward_hook(count)
    net(x)
    return torch.linalg.slogdet(total)[1]


def jacob_cov(net, x, y):
    """From eigenvalues of the correlations between input gradients."""
    x = x.clone().requires_grad_()
    gradient = torch.autograd.grad(net(x).sum(), x)[0].flatten(1)
    eigenvalues = torch.linalg.eigvalsh(torch.corrcoef(gradient)) + 1e-5
    return -(eigenvalues.log() + 1 / eigenvalues).sum()


METRICS = {
    "grad_norm": grad_norm,
    "snip": snip,
    "grasp": grasp,
    "trace and condition number": kernel,
    "fisher": fisher,
    "synflow": synflow,
    "naswot": naswot,
    "jacob_cov": jacob_cov,
}


def torch_scorer(name, x, y, channels, num_cells, num_classes):
    """A function that computes one of ``METRICS``, or all one after the other for ``"set"``."""
    x = torch.from_numpy(np.array(np.moveaxis(np.asarray(x), -1, 1), order="C"))
    y = torch.from_numpy(np.array(y)).long()
    metrics = METRICS.values() if name == "set" else (METRICS[name],)

    def score(genotype):
        return [
            metric(network(genotype.tolist(), channels, num_cells, num_classes), x, y).item()
            for metric in metrics
        ]

    return score
