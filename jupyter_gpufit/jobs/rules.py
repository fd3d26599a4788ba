"""What of a folder does not travel: by `.gitignore` and `.gpufitignore`, read as git reads them, and by what is never
meant. Who says more: `.gpufitignore` (the deeper one first), `.gitignore` (likewise), then ours.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from pathspec import GitIgnoreSpec

from ..errors import InvalidValue

__all__ = ["IGNORE_FILES", "OUTPUTS", "Rules"]

OUTPUTS = "outputs"
"""Directory of a folder in which the outputs of jobs are kept."""
IGNORE_FILES = (".gpufitignore", ".gitignore")
_LARGEST = 2**17  # bytes; of a file of rules
_STARS, _DOUBLE_STARS = 4, 3
"""How many `*` a name in a rule may have, and how many `**` a rule. To look for one with more may take hours, in which
nothing else runs in this process."""
_ALWAYS = (".git", "__pycache__/", ".ipynb_checkpoints/", ".venv/", "node_modules/")


class _Rule(Struct, frozen=True):
    """One file of rules, and how the paths that it speaks of come of ours."""

    kind: int
    """Index in `IGNORE_FILES`."""
    spec: GitIgnoreSpec
    cut: int = 0
    before: str = ""


class Rules:
    """The rules that hold in `base`, and below it. Read as a walk comes to them; files that cannot be read say nothing,
    and one with a rule that cannot be used is refused (`InvalidValue`).

    `outputs`: those of jobs stay here, too. `above`: the rules of the git repository hold that `base` is a part of.
    """

    def __init__(self, base: Path, *, outputs: bool = True, above: bool = True) -> None:
        self._base = base
        self._ours = GitIgnoreSpec.from_lines([*_ALWAYS, *([f"/{OUTPUTS}/"] if outputs else [])])
        self._above = _repository(base) if above else ()
        self._read: dict[str, tuple[_Rule, ...]] = {}

    def ignored(self, path: str, directory: bool) -> bool:
        """Whether `path` (relative to `base`; what is above it is not ignored) stays here."""
        slash = "/" if directory else ""
        for rule in self._in_force(posixpath.dirname(path)):
            verdict = rule.spec.check_file(f"{rule.before}{path[rule.cut :]}{slash}").include
            if verdict is not None:
                return verdict
        return bool(self._ours.check_file(path + slash).include)

    def why(self, path: str, directory: bool = False) -> str | None:
        """What of `path` stays here, itself or something above it, if so; relative to `base`."""
        parts = path.split("/")
        above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        found = next((each for each in above if self.ignored(each, True)), None)
        if found is not None:
            return f"{found}/"
        return path if self.ignored(path, directory) else None

    def _in_force(self, directory: str) -> tuple[_Rule, ...]:
        """What holds for that which is in `directory` (relative to `base`), the weightiest first."""
        if (known := self._read.get(directory)) is not None:
            return known
        outer = self._in_force(posixpath.dirname(directory)) if directory else tuple(self._of_above())
        own = [
            _Rule(kind, spec, cut=len(directory) + 1 if directory else 0)
            for kind in range(len(IGNORE_FILES))
            if (spec := _spec(self._base / directory / IGNORE_FILES[kind])) is not None
        ]
        # The sort is stable: of each kind the deeper ones come first.
        known = self._read[directory] = tuple(sorted((*own, *outer), key=lambda rule: rule.kind)) if own else outer
        return known

    def _of_above(self) -> Iterator[_Rule]:
        for directory in self._above:
            for kind, name in enumerate(IGNORE_FILES):
                if (spec := _spec(directory / name)) is not None:
                    yield _Rule(kind, spec, before=f"{self._base.relative_to(directory).as_posix()}/")


def _repository(base: Path) -> tuple[Path, ...]:
    """The directories above `base`, up to the top of the git repository that it is a part of; none outside any."""
    if os.path.lexists(base / ".git"):
        return ()
    for depth, directory in enumerate(base.parents, 1):
        if os.path.lexists(directory / ".git"):
            return tuple(base.parents[:depth])
    return ()


def _never_waits(path: str, flags: int) -> int:
    """For `open`: a pipe of that name is as good as empty."""
    return os.open(path, flags | os.O_NONBLOCK)


def _spec(file: Path) -> GitIgnoreSpec | None:
    try:
        with open(file, encoding="utf-8", errors="surrogateescape", opener=_never_waits) as opened:
            lines = opened.read(_LARGEST).splitlines()
    except OSError:
        return None
    sound = []
    for line in lines:
        names = line.split("/")
        if any(name.count("*") > _STARS for name in names) or names.count("**") > _DOUBLE_STARS:
            if line.startswith("#"):
                continue
            raise InvalidValue(
                f"{file} has a rule with too many '*': {line[:80]!r}; write it with {_STARS} in a name at most, "
                f"and {_DOUBLE_STARS} times '**'"
            )
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError:
            continue  # git goes on with the next one, too
        sound.append(line)
    return GitIgnoreSpec.from_lines(sound)
