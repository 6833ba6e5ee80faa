import pytest

from lora_rl.cluster.layout import Demand, Mode, Place, fits, room_fault


def demand(mode: Mode = "disaggregated", ranks: int = 1, replicas: int = 1, tensor_parallel: int = 1) -> Demand:
    return Demand(mode=mode, trainer_ranks=ranks, replicas=replicas, tensor_parallel=tensor_parallel)


def test_disaggregated_gives_each_rank_and_each_engine_gpus_of_their_own() -> None:
    layout = demand(ranks=2, replicas=2, tensor_parallel=2).layout()
    assert layout.bundles == (2, 2, 1, 1)
    assert layout.engines == (Place(bundle=0, gpus=(0, 1)), Place(bundle=1, gpus=(0, 1)))
    assert layout.trainer == (Place(bundle=2, gpus=(0,)), Place(bundle=3, gpus=(0,)))


def test_colocated_shares_each_engines_gpus_among_the_ranks() -> None:
    layout = demand("colocated", ranks=4, replicas=2, tensor_parallel=2).layout()
    assert layout.bundles == (2, 2)
    assert [(place.bundle, place.gpus) for place in layout.trainer] == [(0, (0,)), (0, (1,)), (1, (0,)), (1, (1,))]
    assert layout.engines == (Place(bundle=0, gpus=(0, 1)), Place(bundle=1, gpus=(0, 1)))


@pytest.mark.parametrize(("ranks", "replicas", "bundles"), [(1, 3, (1, 1, 1)), (3, 1, (1, 1, 1))])
def test_colocated_needs_as_many_gpus_as_the_larger_of_both(ranks: int, replicas: int, bundles: tuple) -> None:
    layout = demand("colocated", ranks=ranks, replicas=replicas).layout()
    assert layout.bundles == bundles
    assert len({(place.bundle, place.gpus) for place in layout.trainer}) == ranks


def test_an_engine_of_several_gpus_lies_on_one_node() -> None:
    layout = demand("colocated", ranks=1, replicas=3, tensor_parallel=2).layout()
    assert fits(layout, [4, 2])
    assert not fits(layout, [3, 3])


def test_enough_gpus_are_no_fault() -> None:
    assert room_fault(demand(), [2]) is None
    assert room_fault(demand("colocated"), [1]) is None


@pytest.mark.parametrize(
    ("asked", "nodes", "text"),
    [
        (demand(), [1], r"disaggregated needs 2 GPUs for 1 trainer rank\(s\) and 1 engine\(s\) of 1, but the cluster "
         r"has 1 \(1 by node\); set it to colocated, which fits"),
        (demand(replicas=4), [2], r"needs 5 GPUs .* has 2 .*; with disaggregated and engine.replicas 1 it fits"),
        (demand("colocated", replicas=4), [1, 1], r"needs 4 GPUs .* has 2 \(1 \+ 1 by node\); "
         r"with colocated and engine.replicas 2 it fits"),
        (demand(ranks=8), [2], r"needs 9 GPUs .* lower the trainer's parallel sizes, or join a larger cluster"),
        (demand(tensor_parallel=4), [2, 2], r"engine.tensor_parallel: 4 GPUs of one node for each engine, but the "
         r"cluster has 4 \(2 \+ 2 by node\); lower it"),
    ],
)  # fmt: skip
def test_too_few_gpus_are_named_with_what_would_fit(asked: Demand, nodes: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        raise ValueError(room_fault(asked, nodes))


def test_another_layout_has_another_digest() -> None:
    modes: tuple[Mode, ...] = ("colocated", "disaggregated")
    layouts = [demand(mode, replicas=replicas).layout() for mode in modes for replicas in (1, 2)]
    assert len({layout.digest for layout in layouts}) == len(layouts)
