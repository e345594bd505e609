"""Lines of CUDA C++ with indentation and `#line` directives, and C identifiers for the program's names."""

from __future__ import annotations

import re

from cake_ir.diagnostics import Span

_RESERVED = frozenset(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr const_cast
    continue decltype default delete do double dynamic_cast else enum explicit export extern false float for friend goto if
    inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast return short signed sizeof static static_assert static_cast struct switch template this thread_local
    throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
    cake CUtensorMap threadIdx blockIdx blockDim gridDim warpSize min max abs fminf fmaxf fabsf assert printf
    lane warp wtid wwarp instance smem smem_base u16 u32 u64 r""".split()
)

_FUNCTIONS = frozenset(
    """acos asin atan atan2 cbrt ceil clock cos cosh div erf erfc exit exp exp2 exp10 expm1 floor fma fmax fmin fmod free frexp
    hypot index isfinite isinf isnan ldexp llabs llrint llround lgamma log log10 log1p log2 logb lrint lround malloc memcpy
    memset modf nan norm pow printf rcbrt remainder rint round rsqrt signbit sin sincos sinh sqrt tan tanh tgamma time
    trunc""".split()
)
"""C and CUDA functions that NVRTC declares by itself. Local names may hide them; a kernel stands beside them."""


def source_file(name: str, kernel: str) -> str:
    """A file name that a `#line` directive may carry."""
    stem = re.sub(r"[^A-Za-z0-9_.\-]", "_", name.rsplit("/", 1)[-1])
    stem = stem.removesuffix(".cake").lstrip(".-")[:100] or kernel
    return f"{stem if name != '<text>' else kernel}.cake"


class Names:
    """C identifiers: the author's name where free, else with a number."""

    def __init__(self) -> None:
        self._taken: set[str] = set(_RESERVED)
        self._given: dict[int, str] = {}
        self._keep: list[object] = []

    def fresh(self, wish: str) -> str:
        """An unused identifier that resembles `wish`."""
        base = re.sub(r"[^A-Za-z0-9_]", "_", wish) or "v"
        if base[0].isdigit() or base.startswith("_"):
            base = "v" + base
        while "__" in base:
            base = base.replace("__", "_")
        name, number = base, 1
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name

    def symbol(self, kernel: object, wish: str) -> str:
        """The global name of a kernel."""
        return self.of(kernel, f"{wish}_kernel" if wish in _FUNCTIONS else wish)

    def of(self, thing: object, wish: str) -> str:
        """The identifier of an object (by identity)."""
        if id(thing) not in self._given:
            self._given[id(thing)] = self.fresh(wish)
            self._keep.append(thing)
        return self._given[id(thing)]


class Writer:
    """Collects lines. `at(span)` makes the next lines belong to a line of the program text."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._lines: list[tuple[int, str, int]] = []  # indent, text, source line (0: none)
        self._indent = 0
        self._source = 0

    def at(self, span: Span) -> None:
        """Lines written from here on come from this place."""
        self._source = span.line if span.line > 0 else 0

    def plain(self) -> None:
        """The next lines belong to no line of the program text."""
        self._source = 0

    def line(self, text: str) -> None:
        """One line of code."""
        self._lines.append((self._indent, text, self._source))

    def open(self, text: str) -> None:
        """A line that opens a block."""
        self._lines.append((self._indent, text + " {" if text else "{", self._source if text else 0))
        self._indent += 1

    def close(self, text: str = "}") -> None:
        """Ends a block."""
        self._indent -= 1
        self._lines.append((self._indent, text, 0))

    def middle(self, text: str) -> None:
        """`} else {` and the like."""
        self._indent -= 1
        self.line(text)
        self._indent += 1

    def mark(self) -> tuple[int, int]:
        """A place to insert declarations later: (position, indent)."""
        return len(self._lines), self._indent

    def since(self, mark: tuple[int, int]) -> list[tuple[int, str, int]]:
        """Lines written since a mark: (indent, text, source line)."""
        return self._lines[mark[0] :]

    def insert(self, mark: tuple[int, int], texts: list[str]) -> None:
        """Insert lines at a mark. Marks behind it shift; insert from the last mark to the first."""
        position, indent = mark
        self._lines[position:position] = [(indent, text, 0) for text in texts]

    def render(self) -> str:
        """The text. A `#line` stands wherever the running number would name another line than the program's."""
        out: list[str] = []
        expected = 0
        for number, (indent, text, source) in enumerate(self._lines):
            after_pragma = number > 0 and self._lines[number - 1][1].startswith("#pragma")
            if source and source != expected and not after_pragma:
                # A pragma must stay next to its loop, so it takes the line number before the loop's.
                here = source - 1 if text.startswith("#pragma") and source > 1 else source
                out.append(f'#line {here} "{self.file}"')
                expected = here
            out.append(text if text.startswith("#") else "  " * indent + text)
            if expected:
                expected += 1
        return "\n".join(out) + "\n"
