"""From kernels to mutants: every edit of every operator, printed, with its content id; equal programs count once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cake_ir import content_id, print_file
from cake_ir.syntax import File
from tests.mutation.operators import Editor, Mutation, whole
from tests.mutation.operators_data import data
from tests.mutation.operators_sync import synchronisation
from tests.mutation.subjects import Subject
from tests.mutation.tree import alone


@dataclass(frozen=True)
class Entry:
    """One mutant of the plan. index: of the edit in its subject's order; id: content id of the mutant."""

    subject: str
    index: int
    id: str
    kind: str
    op: str
    sync: bool
    what: str


def mutations(subject: Subject) -> Iterator[Mutation]:
    """All edits of a subject, in a fixed order."""
    ed = Editor(subject.tree)
    yield from whole(ed)
    yield from synchronisation(ed)
    yield from data(ed)


def file_of(m: Mutation) -> File:
    """The mutant as a file of one kernel."""
    return alone(m.kernel)


def text_of(m: Mutation) -> str:
    """The mutant's canonical text."""
    return print_file(file_of(m))


_plans: dict[tuple[str, str], list[Entry]] = {}


def entries(subject: Subject) -> list[Entry]:
    """The plan of one subject: each program once, the unmutated one never. Made once per process, for that takes seconds."""
    key = (subject.name, subject.id)
    if key not in _plans:
        _plans[key] = _entries(subject)
    return list(_plans[key])


def _entries(subject: Subject) -> list[Entry]:
    seen = {subject.id}
    found = []
    for i, m in enumerate(mutations(subject)):
        name = content_id(file_of(m))
        if name not in seen:
            seen.add(name)
            found.append(Entry(subject.name, i, name, m.kind, m.op, m.sync, m.what))
    return found
