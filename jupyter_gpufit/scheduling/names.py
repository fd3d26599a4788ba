"""Readable names for allocations whose owner did not give one."""

from __future__ import annotations

from collections.abc import Container
from random import Random

__all__ = ["fresh_name"]

_ADJECTIVES = """
    amber ample azure bold brave brisk calm clear cosy crisp dapper deft eager early fair fleet fond frank fresh
    gentle glad grand happy hardy humble jolly keen kind lively lucid lucky mellow merry mild modest neat nimble
    noble patient plain polite prime proud quick quiet rapid ready robust royal sharp shiny silent sleek smart
    snug solid spry steady stout sunny swift tidy trusty upbeat vivid warm wise witty young zesty
""".split()  # noqa: SIM905  (lists of words read better as text)
_NOUNS = """
    adder badger beaver bison bobcat condor coral crane cricket dingo dolphin eagle egret falcon ferret finch fox
    gecko gibbon gopher grouse hare heron ibex iguana jackal jaguar kestrel koala lark lemur leopard lizard llama
    lynx marten merlin mole moose narwhal newt ocelot orca osprey otter owl panda parrot pelican pika plover
    puffin puma quail rabbit raven robin salmon seal shrew stoat stork swan tapir tern tiger toucan trout turtle
    viper vole walrus weasel wombat wren
""".split()  # noqa: SIM905  (lists of words read better as text)


def fresh_name(taken: Container[str], random: Random) -> str:
    """A name such as `"brisk-otter"` that is not in `taken`; numbered when the words run out."""
    for _ in range(8):
        name = f"{random.choice(_ADJECTIVES)}-{random.choice(_NOUNS)}"
        if name not in taken:
            return name
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"
