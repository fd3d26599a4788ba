"""Cutting a cell into what stays local and what goes to the allocation."""

from __future__ import annotations

import pytest

from jupyter_gpufit.notebook.segments import split


def cut(cell: str, **options: bool) -> list[tuple[str, str]]:
    return [("local" if segment.local else "remote", segment.code) for segment in split(cell, **options)]


@pytest.mark.parametrize(
    "cell",
    [
        "x = 1\nprint(x)\n",
        "print('''\n%gpufit release\n''')",
        "x = [7,\n%gpufit]",
        "# %gpufit release\nx = 1",
        "%%time\n%gpufit nodes\n",
        "gpufit = 3\ngpufit % 2",
        "%gpufitx nodes",
        "def broken(:\n  x",
        "'unclosed",
        "x = (1,\n",
        "!nvidia-smi\n%time x = 3",
        "%load_ext jupyter_gpufit_other",
    ],
)
def test_ordinary_cells_go_in_one_piece(cell: str) -> None:
    assert cut(cell) == [("remote", cell)]


@pytest.mark.parametrize(
    "cell",
    [
        "%gpufit",
        "%gpufit release",
        "%gpufit request 2 --memory 16GiB\n",
        "df = %gpufit gpus",
        "a.b['c'] = %gpufit nodes",
        "%gpufit nodes;",
        "%gpufit?",
        "?%gpufit",
        "%%gpufit --push a\nprint(a)",
        "%%gpufit",
        "%%gpufit?",
        "%load_ext jupyter_gpufit",
        "%reload_ext jupyter_gpufit",
        "\n# ask\n%gpufit nodes",
    ],
)
def test_gpufit_cells_stay(cell: str) -> None:
    assert cut(cell) == [("local", cell)]


def test_a_mixed_cell_is_cut_in_order() -> None:
    assert cut(
        "a = 1\nfor i in range(3):\n    print(i)\n\n%gpufit\n# then\nb = '''\n%gpufit no\n'''\ndf = %gpufit gpus\nb"
    ) == [
        ("remote", "a = 1\nfor i in range(3):\n    print(i)\n\n"),
        ("local", "%gpufit\n# then\n"),
        ("remote", "b = '''\n%gpufit no\n'''\n"),
        ("local", "df = %gpufit gpus\n"),
        ("remote", "b"),
    ]


def test_nothing_is_lost_or_doubled() -> None:
    cell = "\n\nx = 1 ; y = (\n 2)\n\n%gpufit nodes\n\n\nif x:\n    y\n\n%gpufit gpus\n\n"
    assert "".join(segment.code for segment in split(cell)) == cell


def test_automagic() -> None:
    assert cut("gpufit nodes", automagic=True) == [("local", "gpufit nodes")]
    assert cut("gpufit nodes", automagic=False) == [("remote", "gpufit nodes")]
    assert cut("gpufit = 2", automagic=True) == [("remote", "gpufit = 2")]
    assert cut("gpufit.x", automagic=True) == [("remote", "gpufit.x")]


def test_an_empty_cell_has_no_segment() -> None:
    assert split("  \n ") == []
