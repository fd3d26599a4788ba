"""What a form for requests is told."""

from __future__ import annotations

from jupyter_gpufit.inventory import Inventory, NodeSpec, Quota
from jupyter_gpufit.scheduling.about import about


def node(name: str, image: str | None = None, *images: str) -> NodeSpec:
    """With an image: one with an engine."""
    if image is None:
        return NodeSpec(name=name)
    return NodeSpec(name=name, docker=f"tcp://{name}:2376", image=image, images=images)


def test_the_usual_image_is_that_of_all_nodes_with_an_engine() -> None:
    def usual(*specs: NodeSpec) -> str | None:
        return about(Inventory(nodes=specs), "best-fit", "ada").image

    assert usual(node("n1", "lab/a"), node("n2", "lab/a"), node("n3")) == "lab/a"
    assert usual(node("n1", "lab/a"), node("n2", "lab/b")) is None, "it depends on the node"
    assert usual(node("n1")) is None


def test_images_are_those_that_are_named_not_globs() -> None:
    specs = (node("n1", "lab/b", "lab/c:*", "lab/a", "lab/[xy]"), node("n2", "lab/b", "lab/d?"), node("n3"))
    assert about(Inventory(nodes=specs), "best-fit", "ada").images == ("lab/a", "lab/b")


def test_the_quota_is_the_owners() -> None:
    inventory = Inventory(nodes=(), all_quota=Quota(time=60.0), own_quotas={"bob": Quota(gpus=8)})
    ada, bob = about(inventory, "claim", "ada"), about(inventory, "claim", "bob")
    assert (ada.owner, ada.policy, ada.quota, ada.time) == ("ada", "claim", Quota(time=60.0), 60.0)
    assert (bob.quota, bob.time) == (Quota(gpus=8), None)
    assert about(Inventory(nodes=()), "claim", "ada").quota is None, "no limit of any kind"
