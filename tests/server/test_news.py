"""What there is to tell of the nodes, and in which order."""

from __future__ import annotations

from typing import Any

from helpers.fakes import node
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from jupyter_gpufit.models import Node
from jupyter_gpufit.server.news import News


def with_gpu(one: Node, **values: Any) -> Node:
    """The node, with its first GPU changed."""
    return replace(one, gpus=(replace(one.gpus[0], **values), *one.gpus[1:]))


def told_of(*nodes: Node) -> News:
    """All of them have been told."""
    news = News()
    for one in nodes:
        news.saw(one.name, one)
    news.take(news.turn(0))
    assert not news
    return news


def test_a_node_is_told_once_as_it_is_then() -> None:
    news = News()
    for used in range(5):
        news.saw("n1", node("n1", memory=used))
    news.saw("n2", node("n2"))
    assert news.turn(0) == ["n1", "n2"]
    changed, removed = news.take(["n1"])
    assert (changed, removed) == ([node("n1", memory=4)], [])
    assert news.turn(0) == ["n2"]
    assert news.take(["n1", "n3"]) == ([], []), "nothing is new of these"


def test_age_is_no_news_and_back_to_what_it_was_neither() -> None:
    news = told_of(node("n1"))
    news.saw("n1", replace(node("n1"), age=7.0))
    assert not news
    for other in (with_gpu(node("n1"), power=7.0), node("n1", reason="stale"), node("n1", gpus=1)):
        news.saw("n1", other)
        assert news
        news.saw("n1", node("n1"))
        assert not news
    news.saw("n1", None)
    news.saw("n1", node("n1"))
    assert not news, "it was gone only between two looks"


def test_gauges_wait_for_their_turn_and_nothing_else_does() -> None:
    names = [f"n{number}" for number in range(6)]
    news = told_of(*(node(name) for name in names))
    for name in reversed(names):
        news.saw(name, with_gpu(node(name), temperature=40, utilization=5, power=70.0))
    weighty = {
        "n1": with_gpu(node("n1"), memory_free=1),
        "n3": with_gpu(node("n3"), allocations=("a",), temperature=41),
        "n4": node("n4", reason="unreachable"),
    }
    for name, one in weighty.items():
        news.saw(name, one)
    news.saw("n2", None)
    assert news.turn(0) == ["n2", "n1", "n3", "n4"]
    assert news.turn(1) == ["n2", "n1", "n3", "n4", "n5"]
    assert news.take(news.turn(1)) == (
        [*weighty.values(), with_gpu(node("n5"), temperature=40, utilization=5, power=70.0)],
        ["n2"],
    )
    news.saw("n5", with_gpu(node("n5"), temperature=44))
    assert news.turn(1) == ["n0"], "who waits longest comes first"
    news.saw("n0", with_gpu(node("n0"), temperature=45))
    assert news.turn(1) == ["n0"], "and does not lose its place by what is newer still"
    assert news.take(news.turn(1)) == ([with_gpu(node("n0"), temperature=45)], [])
    assert news.turn(1) == ["n5"]


def test_one_that_nobody_was_told_of_is_not_said_to_be_gone() -> None:
    news = News()
    news.saw("n1", node("n1"))
    news.saw("n1", None)
    assert not news


views = st.builds(
    lambda name, free, temperature, age: (
        name,
        None
        if free is None
        else replace(with_gpu(node(name, gpus=1), memory_free=free, temperature=temperature), age=age),
    ),
    st.sampled_from(["n1", "n2", "n3"]),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([30, 31]),
    st.sampled_from([0.0, 1.0]),
)


@settings(deadline=None)
@given(st.lists(st.one_of(views, st.integers(0, 2)), max_size=40))
def test_whoever_puts_the_news_together_has_the_nodes(steps: list[Any]) -> None:
    """A front end that takes up all events knows what there is to know, whatever the order of changes and turns."""
    news, known, now = News(), {}, {}

    def tell(most_light: int) -> None:
        changed, removed = news.take(news.turn(most_light))
        known.update({one.name: one for one in changed})
        for name in removed:
            del known[name]

    for step in steps:
        if isinstance(step, int):
            tell(step)
            continue
        name, one = step
        now[name] = one
        news.saw(name, one)
    tell(100)
    assert not news
    expected = {name: replace(one, age=None) for name, one in now.items() if one is not None}
    assert {name: replace(one, age=None) for name, one in known.items()} == expected
