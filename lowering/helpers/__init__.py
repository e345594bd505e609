"""CUDA device helpers: one small function per instruction form, as text. Only the used ones go into a kernel.

A helper is found by name in the family tables, or made on demand from a shape (`wgmma`, loads by width). Helper text
has no preprocessor directive and includes nothing.
"""

from __future__ import annotations

from lowering.helpers import barriers, convert, copies, memory, timeline

PREAMBLE = """\
namespace cake {
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
"""

TENSOR_MAP = "struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };\n"

_TABLES = (barriers.TEXT, copies.TEXT, convert.TEXT, memory.TEXT, timeline.TEXT)
_NEEDS: dict[str, tuple[str, ...]] = {
    **barriers.NEEDS,
    **copies.NEEDS,
    **convert.NEEDS,
    **memory.NEEDS,
    **timeline.NEEDS,
}


class Helpers:
    """The helpers one kernel uses, in order of first use."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def use(self, name: str) -> str:
        """Include a helper of the tables (and what it needs); the qualified name to call. Raises KeyError if unknown."""
        if name not in self._texts:
            text = next((table[name] for table in _TABLES if name in table), None)
            if text is None:
                raise KeyError(name)
            for needed in _NEEDS.get(name, ()):
                self.use(needed)
            self._texts[name] = text
        return f"cake::{name}"

    def add(self, name: str, text: str) -> str:
        """Include a generated helper; the qualified name to call."""
        self._texts.setdefault(name, text)
        return f"cake::{name}"

    def render(self) -> str:
        """The namespace with every used helper."""
        return PREAMBLE + "\n" + "\n".join(self._texts.values()) + "}  // namespace cake\n"
