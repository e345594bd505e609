"""Random syntax trees that obey the grammar, for the round-trip properties. Depth stays below the parser's limit."""

from __future__ import annotations

from hypothesis import strategies as st

from cake_ir import syntax as cst

identifiers = st.one_of(
    st.sampled_from(["a", "b", "k", "x", "acc", "match", "type", "_", "row", "print", "A_1"]),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True),
).filter(lambda word: word not in cst.KEYWORDS)
names = identifiers.map(lambda word: cst.Name(id=word))
numbers = st.one_of(
    st.integers(0, 300),
    st.integers(0, cst.MAX_INT),
    st.floats(0, allow_nan=False, allow_infinity=False).filter(lambda x: str(x)[0] != "-"),
).map(lambda value: cst.Num(value=value))
literals = st.one_of(
    names, numbers, numbers.map(lambda n: cst.Unary(op="-", operand=n)), st.booleans().map(lambda v: cst.Bool(value=v))
)
# What a person may write behind '#': printable, one line.
prose = st.text(st.sampled_from("ab #\"'\\()é∑𝄞:."), max_size=12)
docs = st.none() | st.text(st.sampled_from("ab \n\n\"'\\é∑"), max_size=30)


def _grow(inner: st.SearchStrategy) -> st.SearchStrategy:
    items = st.lists(inner, min_size=1, max_size=3).map(tuple)
    flat = inner.filter(lambda node: not isinstance(node, cst.Tuple))
    maybe = st.none() | inner
    index_item = st.one_of(
        flat, st.builds(cst.Slice, start=maybe, stop=maybe), st.just(cst.NewAxis()), st.just(cst.Slice(start=cst.ZERO))
    )
    keywords = st.lists(
        st.builds(cst.Keyword, name=identifiers, value=inner), max_size=2, unique_by=lambda keyword: keyword.name
    ).map(tuple)
    return st.one_of(
        st.builds(cst.Unary, op=st.sampled_from(["-", "not", "~"]), operand=inner),
        st.builds(
            cst.Binary,
            op=st.sampled_from(["+", "-", "*", "/", "//", "%", "<<", ">>", "&", "|", "^"]),
            left=inner,
            right=inner,
        ),
        st.builds(
            cst.Logic, op=st.sampled_from(["and", "or"]), operands=st.lists(inner, min_size=2, max_size=3).map(tuple)
        ),
        items.flatmap(
            lambda rest: st.builds(
                cst.Compare,
                first=inner,
                ops=st.tuples(*[st.sampled_from(["<", "<=", ">", ">=", "==", "!="])] * len(rest)),
                rest=st.just(rest),
            )
        ),
        st.builds(
            cst.Call,
            func=names | st.builds(cst.Attribute, value=inner, name=identifiers),
            args=st.lists(inner, max_size=3).map(tuple),
            keywords=keywords,
        ),
        st.builds(cst.Attribute, value=inner, name=identifiers),
        st.builds(cst.Index, value=inner, items=st.lists(index_item, min_size=1, max_size=3).map(tuple)),
        st.builds(cst.Tuple, items=items),
    )


_expressions = st.recursive(
    st.one_of(names, numbers, st.booleans().map(lambda v: cst.Bool(value=v))), _grow, max_leaves=8
)


@st.composite
def expressions(draw: st.DrawFn) -> cst.Node:
    """Any expression that is not an index item. Composite, because the repr of the recursion is enormous."""
    return draw(_expressions)


calls = st.builds(cst.Call, func=names, args=st.lists(expressions(), max_size=2).map(tuple))
_notes = {"comments": st.lists(prose, max_size=2).map(tuple), "tail": prose}
_targets = st.lists(names, min_size=1, max_size=2).map(tuple)
_declarations = st.sampled_from(["role", "smem", "mbarrier", "tile_space"]).map(
    lambda word: cst.Call(func=cst.Name(id=word), args=(cst.Name(id="thread"),))
)
straight = st.one_of(
    st.builds(cst.Assign, targets=_targets, value=_declarations | expressions(), **_notes),
    st.builds(cst.CallStmt, call=calls, **_notes),
)
_leaves = straight | st.builds(cst.AugAdd, target=names, value=expressions(), **_notes)


def _nest(inner: st.SearchStrategy) -> st.SearchStrategy:
    block = st.lists(inner, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(cst.For, targets=_targets, iter=calls, body=block, **_notes),
        st.builds(cst.While, cond=expressions(), body=block, **_notes),
        st.builds(cst.If, cond=expressions(), body=block, orelse=st.lists(inner, max_size=2).map(tuple), **_notes),
        st.builds(cst.With, context=names | calls, name=st.none() | names, body=block, **_notes),
    )


_statements = st.recursive(_leaves, _nest, max_leaves=4)


@st.composite
def statements(draw: st.DrawFn) -> cst.Node:
    """Any statement, with its block."""
    return draw(_statements)


_extents = st.lists(
    st.builds(cst.Extent, size=expressions(), stride=st.none() | expressions()), min_size=1, max_size=3
).map(tuple)
_tensors = st.builds(
    cst.TensorParam,
    name=identifiers,
    direction=st.sampled_from(["In", "Const", "Out", "InOut"]),
    dtype=names,
    extents=_extents,
)
_scalars = st.builds(cst.ScalarParam, name=identifiers, dtype=st.sampled_from(["i32", "f32"]))
_domains = st.lists(literals, min_size=1, max_size=3).map(lambda items: cst.Tuple(items=tuple(items))) | st.lists(
    literals, min_size=1, max_size=3
).map(lambda args: cst.Call(func=cst.Name(id="range"), args=tuple(args)))
_tunables = st.builds(cst.Tunable, name=identifiers, domain=_domains, default=literals)


def _function(cls: type, body: st.SearchStrategy, draw, name: str, **more: object):
    tensors = draw(st.lists(_tensors, max_size=3))
    scalars = draw(st.lists(_scalars, max_size=2))
    tunables = draw(st.lists(_tunables, max_size=3))
    seen: set[str] = set()
    groups = [
        tuple(item for item in group if item.name not in seen and not seen.add(item.name))  # type: ignore[func-returns-value]
        for group in (tensors, scalars, tunables)
    ]
    return cls(
        name=name,
        tensors=groups[0],
        scalars=groups[1],
        tunables=groups[2],
        doc=draw(docs),
        body=tuple(draw(st.lists(body, min_size=1, max_size=4))),
        comments=tuple(draw(st.lists(prose, max_size=1))),
        tail=draw(prose),
        **more,
    )


@st.composite
def files(draw: st.DrawFn) -> cst.File:
    """A file of one or two kernels and perhaps a program."""
    words = draw(st.lists(identifiers, min_size=3, max_size=3, unique=True))
    targets = st.lists(st.sampled_from(["sm_80", "sm_90a", "sm_100a"]), min_size=1, max_size=2, unique=True).map(tuple)
    kernels = [
        _function(cst.Kernel, statements(), draw, word, targets=draw(targets))
        for word in words[: draw(st.integers(1, 2))]
    ]
    program = _function(cst.Program, straight, draw, words[2]) if draw(st.booleans()) else None
    comments = tuple(draw(st.lists(prose, max_size=1)))
    doc = draw(docs)
    return cst.File(
        comments=comments if doc and doc.strip() else (),  # without a docstring they belong to the first kernel
        doc=doc,
        kernels=tuple(kernels),
        program=program,
        tail="\n".join(draw(st.lists(prose.filter(str.strip), max_size=2))),
    )
