import pytest

from grpo.stack import seats
from grpo.stack.problem import UserError
from grpo.stack.seats import Node, Seats, place

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def test_actor_on_the_launchers_node_and_engines_elsewhere() -> None:
    found = place([Node(B, 8), Node(A, 8)], A, engines=4, width=2, ranks=8)
    assert found == Seats(A, (B,) * 4, (A,) * 8)
    assert found.nodes == (A, B) and found.others == (B,)


def test_an_engine_is_never_split() -> None:
    nodes = [Node(A, 3), Node(B, 3), Node(C, 3)]
    assert place(nodes, A, engines=2, width=2, ranks=3).engines == (B, C)
    with pytest.raises(UserError, match="no room for 3 engines of 2 GPUs"):
        place(nodes, A, engines=3, width=2, ranks=3)


def test_ranks_take_as_few_nodes_as_possible_even_if_that_is_not_the_launchers() -> None:
    # The launcher's node would hold one of four ranks.
    assert place([Node(A, 1), Node(B, 4)], A, engines=1, width=1, ranks=4) == Seats(A, (A,), (B,) * 4)


def test_ranks_leave_the_launchers_node_if_only_there_an_engine_fits() -> None:
    assert place([Node(A, 4), Node(B, 2)], A, engines=1, width=4, ranks=2) == Seats(A, (A,), (B, B))


def test_ranks_over_nodes_are_in_the_order_of_nodes() -> None:
    found = place([Node(A, 4), Node(B, 8), Node(C, 8)], A, engines=1, width=2, ranks=12)
    assert found.ranks == (A,) * 4 + (B,) * 8 and found.engines == (C,)


def test_one_node_holds_everything_where_it_can() -> None:
    assert place([Node(A, 8)], A, engines=2, width=2, ranks=4) == Seats(A, (A, A), (A,) * 4)


def test_missing_gpus_are_named_by_node() -> None:
    with pytest.raises(UserError, match=r"engine of 1 GPU and 1 actor rank: .*\.1 has 1, 10\.0\.0\.2 has 0") as error:
        place([Node(A, 1), Node(B, 0)], A, engines=1, width=1, ranks=1)
    assert "NUM_ENGINES" in error.value.problem.remedy


def test_many_equal_nodes_take_no_time() -> None:
    nodes = [Node(f"10.0.1.{number}", 1) for number in range(64)]
    with pytest.raises(UserError):
        place(nodes, nodes[0].address, engines=1, width=2, ranks=8)


def test_seats_travel_in_a_variable() -> None:
    chosen = Seats(A, (B,), (A, A))
    assert seats.read({seats.VARIABLE: chosen.dump()}) == chosen
    assert seats.read({}) is None


def test_an_actor_of_several_nodes_finds_them_among_many() -> None:
    nodes = [Node(f"10.0.1.{number}", 8) for number in range(20)]
    found = place(nodes, "10.0.1.3", engines=10, width=2, ranks=40)
    assert len(set(found.ranks)) == 5 and found.ranks[0] == "10.0.1.3"


def test_an_actor_finds_large_nodes_behind_many_small_ones() -> None:
    nodes = [Node(f"10.0.1.{number}", 2) for number in range(40)] + [Node(f"10.0.2.{number}", 8) for number in range(6)]
    found = place(nodes, "10.0.1.0", engines=4, width=2, ranks=48)
    assert set(found.ranks) == {f"10.0.2.{number}" for number in range(6)}
