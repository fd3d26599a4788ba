"""In the place of a package that jsonschema imports where it is installed, as it is wherever a Jupyter server is.

Each import compiles a grammar: two seconds of processor time for every server that the tests start. It checks the
format `iri`, which no schema here has, and jsonschema does without it.
"""

from __future__ import annotations

raise ImportError("left out of the tests: see tests/lighter/rfc3987_syntax.py")
