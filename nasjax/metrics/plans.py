"""The plans of the networks of search spaces."""

from collections.abc import Callable
from functools import partial

import numpy as np

from nasjax.metrics.conv_rule import ConvBlock
from nasjax.metrics.plan import IMAGES, Plan, PlanBuilder, first_channels, relu, same
from nasjax.networks import LayerConfig
from nasjax.networks.darts import REDUCTION, stages
from nasjax.networks.nasbench101 import CONV_SIZES, NUM_STACKS, vertex_channels
from nasjax.networks.pooling import avg_pool_3x3, halve, max_pool_2x2, max_pool_3x3
from nasjax.spaces import darts_strings, nasbench101, nasbench101_graphs
from nasjax.spaces.nasbench1shot1 import NUM_PARENTS, to_nasbench101
from nasjax.spaces.nasbench201 import EDGES, OPERATIONS, prune


def nasbench201_plan(
    genotype: np.ndarray,
    *,
    channels: int = 16,
    num_cells: int = 5,
    config: LayerConfig | None = None,
    cell_config: LayerConfig | None = None,
    reduction_config: LayerConfig | None = None,
) -> Plan:
    """The steps of ``NasBench201Network``.

    Args:
      genotype: ``[6]``.
      channels: of the first stage, which no step depends on.
      num_cells: cells a stage.
      config: initialisation and normalisation; None takes ``LayerConfig()``.
      cell_config: of the cells; None takes ``config``.
      reduction_config: of the reduction blocks; None takes ``config``.

    Returns:
      The plan, without edges that no path from input to output takes.
    """
    genotype = prune(genotype)
    if not genotype.any():
        return Plan((), is_dead=True)
    config = config or LayerConfig()
    cell_config, reduction_config = cell_config or config, reduction_config or config
    plan = PlanBuilder()
    x = plan.conv(IMAGES, ("stem_conv",), ("stem_norm",), config, has_relu=False)
    for stage in range(3):
        if stage > 0:
            x = _reduction(plan, x, f"reduction_{stage}", reduction_config)
        for cell in range(num_cells):
            x = _nasbench201_cell(plan, x, genotype, f"stage_{stage}_cell_{cell}", cell_config)
    x = plan.normalize(x, ("last_norm",), config)
    plan.add("classify", plan.plain(relu, x), path=("classifier",))
    return plan.plan()


def _conv_norm(plan, x, path, config, target=None, **block) -> int:
    """A convolution block whose parts are named as in ``networks.operations``."""
    return plan.conv(x, (*path, "conv"), (*path, "norm"), config, target, **block)


def _reduction(plan, x, name, config) -> int:
    middle = _conv_norm(plan, x, (name, "conv_a"), config, stride=2)
    target = plan.value()
    _conv_norm(plan, middle, (name, "conv_b"), config, target)
    halved, block = plan.plain(halve, x), ConvBlock(has_relu=False, is_normalized=False)
    return plan.add("conv", halved, target, path=(name, "shortcut"), block=block)


def _nasbench201_cell(plan, x, genotype, name, config) -> int:
    nodes = [x, None, None, None]
    for edge, (target, source) in enumerate(EDGES):
        operation = OPERATIONS[genotype[edge]]
        if operation == "none":
            continue
        if nodes[target] is None:
            nodes[target] = plan.value()
        if operation in ("skip_connect", "avg_pool_3x3"):
            apply = same if operation == "skip_connect" else avg_pool_3x3
            plan.plain(apply, nodes[source], nodes[target])
        else:
            path = (name, f"edge_{edge}", operation)
            _conv_norm(plan, nodes[source], path, config, nodes[target])
    return nodes[3]


_max_pool_of_stride_2 = partial(max_pool_3x3, stride=2)  # one object, as programs are kept by it


def darts_plan(
    genotype: np.ndarray,
    *,
    channels: int = 16,
    num_cells: int = 8,
    config: LayerConfig | None = None,
) -> Plan:
    """The steps of ``DartsNetwork`` as it is searched, with pools before the reduction cells.

    Args:
      genotype: ``[2, 4, edges, 2]``.
      channels: of a node in the first cells, which no step depends on.
      num_cells: cells.
      config: initialisation and normalisation; None takes ``LayerConfig()``.

    Returns:
      The plan.
    """
    config = config or LayerConfig()
    plan = PlanBuilder()
    x = plan.conv(IMAGES, ("stem_conv",), ("stem_norm",), config, has_relu=False)
    states = (x, x)
    for _, kinds, first in stages(channels, num_cells):
        if kinds[0] == REDUCTION:
            states = tuple(plan.plain(_max_pool_of_stride_2, state) for state in states)
        for number, kind in enumerate(kinds, first):
            states = states[1], _darts_cell(plan, states, genotype[kind], f"cell_{number}", config)
    plan.add("classify", states[1], path=("classifier",))
    return plan.plan()


def _darts_cell(plan, states, nodes, name, config) -> int:
    states = [
        _conv_norm(plan, state, (name, f"preprocess_{place}"), config)
        for place, state in enumerate(states)
    ]
    for node, edges in enumerate(nodes):
        target = plan.value()
        for edge, (operation, source) in enumerate(np.asarray(edges)):
            path = (name, f"node_{node}_edge_{edge}", darts_strings.OPERATIONS[operation])
            _darts_edge(plan, states[source], path, config, target)
        states.append(target)
    return plan.concat(states[2:])


def _darts_edge(plan, x, path, config, target) -> None:
    operation = path[-1]
    if operation == "skip_connect":
        plan.plain(same, x, target)
    elif operation in ("max_pool_3x3", "avg_pool_3x3"):
        pool = {"max_pool_3x3": max_pool_3x3, "avg_pool_3x3": avg_pool_3x3}[operation]
        plan.normalize(plan.plain(pool, x), (*path, "norm"), config, target)
    else:
        repeats, dilation = (2, 1) if operation.startswith("sep") else (1, 2)
        block = ConvBlock(is_normalized=False, is_depthwise=True, dilation=dilation)
        for repeat in range(repeats):
            x = plan.add("conv", x, path=(*path, f"depthwise_{repeat}"), block=block)
            names = ((*path, f"pointwise_{repeat}"), (*path, f"norm_{repeat}"))
            is_last = repeat == repeats - 1
            x = plan.conv(x, *names, config, target if is_last else None, has_relu=False)


def nasbench101_plan(
    genotype: np.ndarray,
    *,
    channels: int = 16,
    num_cells: int = 3,
    config: LayerConfig | None = None,
) -> Plan:
    """The steps of ``NasBench101Network``.

    Args:
      genotype: of ``nasbench101``, valid.
      channels: of the stem and the first stack.
      num_cells: modules a stack.
      config: initialisation and normalisation; None takes ``LayerConfig()``.

    Returns:
      The plan.

    Raises:
      InputError: if the genotype is not valid, or a vertex would have no channel.
    """
    graph = nasbench101.to_graph(genotype, where="nasbench101_plan")
    config = config or LayerConfig()
    plan = PlanBuilder()
    x, width = _conv_norm_relu(plan, IMAGES, ("stem",), config), channels
    for stage in range(NUM_STACKS):
        x = plan.plain(max_pool_2x2, x) if stage else x
        for cell in range(num_cells):
            features, path = channels * 2**stage, (f"stage_{stage}_cell_{cell}",)
            x, width = _nasbench101_cell(plan, x, width, graph, features, path, config), features
    plan.add("classify", x, path=("classifier",))
    return plan.plan()


def _conv_norm_relu(plan, x, path, config, target=None) -> int:
    return plan.plain(relu, _conv_norm(plan, x, path, config, has_relu=False), target)


def _nasbench101_cell(plan, x, width, graph, features, path, config) -> int:
    matrix, operations = graph
    channels = vertex_channels(width, features, matrix)
    output = len(matrix) - 1
    states = [x]
    for vertex in range(1, output):
        inputs = plan.value()
        for source in np.flatnonzero(matrix[1:vertex, vertex]) + 1:
            narrow = channels[source] > channels[vertex]
            operation = first_channels(channels[vertex]) if narrow else same
            plan.plain(operation, states[source], inputs)
        if matrix[0, vertex]:
            _conv_norm_relu(plan, x, (*path, f"projection_{vertex}"), config, inputs)
        operation = nasbench101_graphs.OPERATIONS[operations[vertex - 1]]
        if operation in CONV_SIZES:
            states.append(_conv_norm_relu(plan, inputs, (*path, f"vertex_{vertex}"), config))
        else:
            states.append(plan.plain(max_pool_3x3, inputs))
    read = [states[vertex] for vertex in range(1, output) if matrix[vertex, output]]
    whole = plan.concat(read) if len(read) > 1 else read[0] if read else None
    if not matrix[0, output]:
        return whole
    target = plan.value()
    if whole is not None:
        plan.plain(same, whole, target)
    return _conv_norm_relu(plan, x, (*path, "projection_output"), config, target)


def _nasbench1shot1_plan(space: str, genotype: np.ndarray, **network) -> Plan:
    whole = to_nasbench101(space, genotype, where="nasbench1shot1_plan")
    return nasbench101_plan(whole, **network)


PLANS: dict[str, Callable[..., Plan]] = {
    "darts": darts_plan,
    "nasbench101": nasbench101_plan,
    "nasbench201": nasbench201_plan,
    **{space: partial(_nasbench1shot1_plan, space) for space in NUM_PARENTS},
}
"""``(genotype, channels=, num_cells=, config=, ...) -> plan`` by space."""
