"""The values of `gpufit.toml`, one reader per key: the TOML value → the value in `NodeSpec`. Pure.

Readers raise `InvalidValue` or `msgspec.ValidationError`; `_gpufit_toml.py` says where in the file that was.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Meta

from .durations import parse_duration
from .errors import InvalidValue
from .inventory import Mount
from .memory import format_memory, parse_memory

__all__ = ["READERS", "REPORTER_PORT", "did_you_mean"]

REPORTER_PORT: Final = 9477


def did_you_mean(word: str, known: tuple[str, ...]) -> str:
    forms = (word, word.lower().replace("-", "_"))
    close = [match for form in forms for match in difflib.get_close_matches(form, known, n=1)]
    return f"; did you mean {close[0]!r}?" if close else ""


def _typed(kind: Any) -> Callable[[Any, Path], Any]:
    return lambda value, folder: msgspec.convert(value, kind)


def _name(value: Any, folder: Path) -> str:
    name = msgspec.convert(value, str)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", name, re.ASCII):
        raise InvalidValue("cannot be a name; use up to 253 letters, digits, '-', '_' and '.', a letter or digit first")
    return name


def _text(value: Any, folder: Path) -> str:
    text: str = msgspec.convert(value, str)
    if not text.strip() or not text.isprintable() or text != text.strip():
        raise InvalidValue("is empty, or has blanks around it or characters that cannot be printed")
    return text


def _duration(least: str, most: str) -> Callable[[Any, Path], float]:
    def read(value: Any, folder: Path) -> float:
        seconds = parse_duration(value)
        if not parse_duration(least) <= seconds <= parse_duration(most):
            raise InvalidValue(f"is not from {least} to {most}")
        return seconds

    return read


def _duration_or_never(least: str, most: str) -> Callable[[Any, Path], float | None]:
    read = _duration(least, most)
    return lambda value, folder: None if value == "never" else read(value, folder)


def _size(least: str) -> Callable[[Any, Path], int]:
    def read(value: Any, folder: Path) -> int:
        size = parse_memory(value)
        if size < parse_memory(least):
            raise InvalidValue(f"{format_memory(size)} is too little; give at least {least}")
        return size

    return read


def _local_file(value: Any, folder: Path) -> str:
    """A path on this machine: `~` is the user's home; a relative one is relative to the inventory."""
    return str(folder / Path(_text(value, folder)).expanduser())


def _absolute(value: Any, folder: Path) -> str:
    """A path on the node, or in its containers."""
    path = PurePosixPath(re.sub("^//+", "/", _text(value, folder)))
    if not path.is_absolute() or ".." in path.parts:
        raise InvalidValue("is not an absolute path; write it from the root, like '/srv/data', and without '..'")
    return str(path)


def _url(value: Any, folder: Path, schemes: tuple[str, ...], example: str) -> SplitResult:
    text = _text(value, folder)
    hint = f"write it like {example}"
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise InvalidValue(f"is not an address ({error}); {hint}") from None
    if url.scheme not in schemes or "://" not in text:
        raise InvalidValue(f"has none of the schemes {', '.join(scheme + '://' for scheme in schemes)}; {hint}")
    if url.password is not None:
        raise InvalidValue(
            "holds a password, and this file is no place for secrets; use keys, tls or report_token_file"
        )
    if url.query or url.fragment or " " in text or port == 0:
        raise InvalidValue(f"has more than an address has; {hint}")
    if url.scheme != "unix" and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*|[0-9A-Fa-f:]+", url.hostname or ""):
        raise InvalidValue(f"has no host that can be one; {hint}")
    return url


def _docker(value: Any, folder: Path) -> str | None:
    if value == "process":
        return None
    example = "'tcp://gpu01:2376', 'unix:///var/run/docker.sock', 'ssh://me@gpu01' or 'process'"
    url = _url(value, folder, ("unix", "tcp", "ssh"), example)
    if url.scheme == "unix":
        if url.netloc or not PurePosixPath(url.path).is_absolute() or url.path == "/":
            raise InvalidValue(
                "is not a socket's path; write it with three slashes, like 'unix:///var/run/docker.sock'"
            )
        return f"unix://{url.path}"
    # A user that begins with "-" would be an option of the ssh command.
    if url.path.strip("/") or (url.username is not None and not re.fullmatch(r"\w[\w.-]*", url.username, re.ASCII)):
        raise InvalidValue("has more than user, host and port")
    if url.scheme == "tcp":
        if url.username is not None:
            raise InvalidValue("has a user, which an engine's tcp port knows nothing of; leave it out")
        if url.port is None:
            raise InvalidValue("has no port; Docker's own are 2376 (TLS) and 2375 (plain)")
    return f"{url.scheme}://{url.netloc}"


def _report(value: Any, folder: Path) -> str:
    text = _text(value, folder)
    if text == "local":
        return text
    if text.startswith("simulated:"):
        if not text.removeprefix("simulated:").strip():
            raise InvalidValue("does not say what to simulate; write it like 'simulated:4xA100-40GB'")
        return text
    url = _url(text, folder, ("http", "https"), f"'http://gpu01:{REPORTER_PORT}', 'local' or 'simulated:4xA100-40GB'")
    if url.username is not None:
        raise InvalidValue("has a user, which a reporter knows nothing of; its token goes into report_token_file")
    if url.port is None:
        raise InvalidValue(f"has no port; a reporter's own is {REPORTER_PORT}")
    return f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"


def _address(value: Any, folder: Path) -> str:
    text = _text(value, folder)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*|[0-9A-Fa-f]*:[0-9A-Fa-f:.]+", text):
        raise InvalidValue("is not a host name or IP address; write it alone, without scheme and port: '10.0.0.11'")
    return text


def _mount(value: Any, folder: Path) -> Mount:
    """`"/srv/data:/data[:ro|:rw]"`, or a table of `source`, `target` and `read_only`. Read-only if not said."""
    if isinstance(value, str):
        source, _, rest = value.partition(":")
        target, _, mode = rest.partition(":")
        if not target or mode not in ("", "ro", "rw"):
            raise InvalidValue("is not a mount; write it like '/srv/data:/data', '/srv/data:/data:rw', or as a table")
        value = {"source": source, "target": target, "read_only": mode != "rw"}
    if isinstance(value, dict) and (odd := set(value) - set(Mount.__struct_fields__)):
        raise InvalidValue(f"a mount has no key {min(odd)!r}; its keys are {', '.join(Mount.__struct_fields__)}")
    mount = msgspec.convert(value, Mount)
    source, target = _absolute(mount.source, folder), _absolute(mount.target, folder)
    if PurePosixPath(source).name == "docker.sock":
        raise InvalidValue(f"{source} would make whoever is in the container root of the node; leave it out")
    if target == "/" or PurePosixPath(target).parts[1] in ("proc", "sys", "dev"):
        raise InvalidValue(f"{target} is the container's own; mount it elsewhere")
    return Mount(source=source, target=target, read_only=mount.read_only)


def _mounts(value: Any, folder: Path) -> tuple[Mount, ...]:
    mounts = tuple(_mount(each, folder) for each in msgspec.convert(value, list[Any]))
    targets = [mount.target for mount in mounts]
    if twice := sorted({target for target in targets if targets.count(target) > 1}):
        raise InvalidValue(f"{twice[0]} is the target of two mounts; a directory can be mounted once")
    return mounts


def _shared(value: Any, folder: Path) -> tuple[str, ...]:
    """Directories that this machine and the node have at the same path."""
    paths = tuple(_absolute(each, folder) for each in msgspec.convert(value, list[Any]))
    for path in paths:
        top = PurePosixPath(path).parts
        if len(top) == 1 or top[1] in ("proc", "sys", "dev"):
            raise InvalidValue(f"{path} cannot be shared as a whole; name the directories below it that are")
    if twice := sorted({path for path in paths if paths.count(path) > 1}):
        raise InvalidValue(f"{twice[0]} is named twice; once is enough")
    return paths


def _labels(value: Any, folder: Path) -> dict[str, str]:
    labels = msgspec.convert(value, dict[str, Any])
    for key, label in labels.items():
        if not isinstance(label, str):
            written = str(label).lower() if isinstance(label, bool) else label
            shown = f'"{written}"' if isinstance(label, bool | int | float) else '"…"'
            hint = f"write {key} = {shown}" if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f"write {shown}, in quotes"
            raise InvalidValue(f"the label {key!r} is {label!r}; labels are text: {hint}")
    return {_text(key, folder): _text(label, folder) for key, label in labels.items()}


def _one_of(*words: str) -> Callable[[Any, Path], str]:
    def read(value: Any, folder: Path) -> str:
        if value not in words:
            raise InvalidValue(f"is not one of {', '.join(map(repr, words))}{did_you_mean(str(value), words)}")
        return str(value)

    return read


_PART: Final = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    # registry[:port]/ (which has a dot, a port, or is localhost), path, :tag, @digest: the grammar of Docker references
    r"(?:(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?::\d+)?|[A-Za-z0-9-]+:\d+|localhost|\[[0-9a-fA-F:]+\](?::\d+)?)/)?"
    rf"{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][\w.-]{{0,127}})?(?:@[A-Za-z0-9+._-]+:[0-9a-fA-F]{{32,}})?",
    re.ASCII,
)


def _image(value: Any, folder: Path) -> str:
    image = _text(value, folder)
    if not _REFERENCE.fullmatch(image) and not re.fullmatch(r"sha256:[0-9a-f]{64}", image):
        hint = "; names of images have no capital letters" if image != image.lower() and " " not in image else ""
        raise InvalidValue(
            f"cannot be the name of an image{hint}; write it like 'registry.example.com:5000/lab/pytorch:2.4'"
        )
    return image


READERS: Final[dict[str, Callable[[Any, Path], Any]]] = {
    "name": _name,
    "docker": _docker,
    "report": _report,
    "report_token_file": _local_file,
    "address": _address,
    "monitor_period": _duration("100ms", "1h"),
    "timeout": _duration("100ms", "1m"),
    "stale_after": _duration("100ms", "1d"),
    "idle_after": _duration_or_never("1s", "365d"),
    "idle_warning": _duration("1s", "7d"),
    "image": _image,
    "images": lambda value, folder: tuple(_text(glob, folder) for glob in msgspec.convert(value, list[Any])),
    "pull": _one_of("missing", "never", "always"),
    "shm_size": _size("1MiB"),
    "ram": _size("64MiB"),
    "cpus": _typed(Annotated[float, Meta(gt=0, le=4096)]),
    "pids": _typed(Annotated[int, Meta(ge=16, le=4194304)]),
    "workdir": _absolute,
    "mounts": _mounts,
    "tls": _local_file,
    "insecure": _typed(bool),
    "allow_plaintext": _typed(bool),
    "models": _absolute,
    "models_write": _typed(bool),
    "shared": _shared,
    "enforce": _one_of("warn", "stop"),
    "labels": _labels,
}
