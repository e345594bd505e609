"""Seeds of a family and the gates they pass.

Every binding of every member is bound and put to the verifier's static rules (resources, derivation). Those that are worth it by
prediction (`corpus.tuning.rank`) are verified in full and compiled. A seed that a gate rejects is kept as a `Rejection` with the
rule and its words: what a tuner without a verifier would have had to run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cake_ir import content_id, parse, variant_id
from cake_ir.diagnostics import CakeError, Diagnostic, error
from corpus import executable
from corpus.check import narrow_sums
from corpus.contract import Contract, contracts
from corpus.executable import Executable
from corpus.families import Family, Member
from corpus.kernels import CorpusKernel
from corpus.kernels import kernel as corpus_kernel

if TYPE_CHECKING:
    from cake_ir.syntax import File
    from lowering.building import Build

Gate = Literal["bind", "verify", "compile"]
HANG_LAYER = "progress"
"""Layer of the rules about kernels that hang (`analyses.rules`)."""
REJECTING = frozenset({"lowering/register-spill", "lowering/wgmma-serialized", "lowering/setmaxnreg-ignored"})
"""Compiler findings that are warnings for an author and no candidate for a tuner: the same schedule is slower than the
one that was verified and ranked, whatever it measures."""
COMPILERS = 2
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Seed:
    """One member with its tunables bound. `bindings` are those that differ from the text's defaults or may vary."""

    kernel: str
    bindings: Mapping[str, Any]
    dtype: str

    @property
    def id(self) -> str:
        """Names it in records: the kernel, the bindings, and the element type."""
        parts = [f"{name.replace('.', '-')}{value}" for name, value in self.bindings.items() if value != self.dtype]
        return "-".join([self.kernel, *parts, self.dtype])


@dataclass(frozen=True)
class Rejection:
    """A seed that a gate stopped. `hangs`: the rule is about kernels that do not end. `executable`: where it could be bound, for a
    prediction of what running it would have cost."""

    seed: Seed
    gate: Gate
    rule: str
    reason: str
    hangs: bool = False
    executable: Executable | None = None


@dataclass(frozen=True)
class Candidate:
    """A seed that passed the gates so far. `builds`: of the kernels of `executable`, once compiled."""

    seed: Seed
    entry: CorpusKernel
    contract: Contract
    executable: Executable
    content_id: str
    variant_id: str
    builds: tuple[Build, ...] = ()

    @property
    def id(self) -> str:
        return self.seed.id


@dataclass
class Found:
    """What binding and the static rules left, in family order."""

    candidates: list[Candidate] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)

    @property
    def seeds(self) -> int:
        """How many there were."""
        return len(self.candidates) + len(self.rejections)


@dataclass(frozen=True)
class Source:
    """A member's text, parsed."""

    member: Member
    entry: CorpusKernel
    file: File
    content_id: str
    tunables: frozenset[str]


def seeds(family: Family, member: Member, tunables: Sequence[str] | frozenset[str], dtype: str) -> Iterator[Seed]:
    """Every binding of a member's domains for one element type, in the order of the domains.

    Raises CakeError `tuning/bad-member` for a domain whose tunable the kernel does not have.
    """
    entry = corpus_kernel(member.kernel)
    for name in member.domains:
        if name not in tunables:
            raise _bad_member(
                f"{family.name}: {member.kernel} has no tunable {name}; it has {', '.join(sorted(tunables))}"
            )
    kind = {name: dtype for name in sorted(tunables) if name.rpartition(".")[2] == family.dtype_tunable}
    fixed = {**entry.bindings, **kind}
    for values in itertools.product(*member.domains.values()):
        yield Seed(member.kernel, {**fixed, **dict(zip(member.domains, values, strict=True))}, dtype)


def enumerate_seeds(family: Family, target: str, progress: Progress = lambda done, total, what: None) -> Found:
    """Bind every seed of the element types that have routes of their own, and apply the static rules.

    Raises CakeError for a member that is not what the family says: unknown kernel, no such tunable, a text that does not parse.
    """
    known = contracts()
    sources = [member_source(m, target) for m in family.kernels]
    distinct: dict[str, tuple[Source, Seed]] = {}  # domains of one kernel may overlap
    for dtype in family.tuned_dtypes:
        for s in sources:
            if not s.member.serves or dtype in s.member.serves:
                for seed in seeds(family, s.member, s.tunables, dtype):
                    distinct.setdefault(seed.id, (s, seed))
    todo = list(distinct.values())
    found = Found()
    for i, (source, seed) in enumerate(todo):
        progress(i, len(todo), f"binding {seed.id}")
        done = examine(source, seed, known[family.contracts[seed.dtype]], target)
        (found.candidates if isinstance(done, Candidate) else found.rejections).append(done)  # type: ignore[arg-type]
    return found


def twin(family: Family, candidate: Candidate, dtype: str, target: str) -> Candidate | Rejection:
    """The same schedule for another element type, as `examine` leaves it."""
    source = member_source(next(m for m in family.kernels if m.kernel == candidate.seed.kernel), target)
    bindings = {
        k: dtype if k.rpartition(".")[2] == family.dtype_tunable else v for k, v in candidate.seed.bindings.items()
    }
    seed = Seed(candidate.seed.kernel, bindings, dtype)
    return examine(source, seed, contracts()[family.contracts[dtype]], target)


def examine(source: Source, seed: Seed, contract: Contract, target: str) -> Candidate | Rejection:
    """One seed bound and put to the static rules; the contract's signature and its rule on sums included."""
    try:
        done = executable.load(source.file, seed.bindings, target, source.entry.kernel)
        done.fits(contract)
        _same_names(done, contract)
    except CakeError as exc:
        return Rejection(seed, "bind", exc.diagnostic.rule, exc.diagnostic.message)
    fault = next(iter(_static_faults(done, contract)), None)
    if fault is not None:
        return Rejection(seed, "verify", fault.rule, fault.message, _hangs(fault.rule), done)
    own = source.file.program.name if source.file.program is not None and source.entry.kernel is None else done.name
    return Candidate(
        seed, source.entry, contract, done, source.content_id, variant_id(source.file, dict(seed.bindings), target, own)
    )


def verify_and_compile(
    chosen: Sequence[Candidate], cache_dir: Path | None, progress: Progress = lambda done, total, what: None,
    meanwhile: Callable[[Sequence[Candidate]], None] = lambda accepted: None,
) -> tuple[int, list[Candidate], list[Rejection]]:  # fmt: skip
    """(how many the whole verifier accepts, the candidates with their machine code, the rejections).

    The compiler does not keep as verified what it refuses, spills, or serialises, where registers do not move, or no block fits.
    Compilers run beside the verifier, and beside `meanwhile`, which is given what was accepted.
    """
    kept: list[Candidate] = []
    rejected: list[Rejection] = []
    accepted: list[Candidate] = []
    with ThreadPoolExecutor(COMPILERS) as pool:
        running = []
        for i, c in enumerate(chosen):
            progress(i, len(chosen), f"verifying {c.id}")
            fault = _fault(c)
            if fault is None:
                accepted.append(c)
                running.append(pool.submit(_compile, c, cache_dir))
            else:
                rejected.append(
                    Rejection(c.seed, "verify", fault.rule, fault.message, _hangs(fault.rule), c.executable)
                )
        meanwhile(accepted)
        for i, (c, made) in enumerate(zip(accepted, running, strict=True)):
            progress(i, len(accepted), f"compiling {c.id}")
            done = made.result()
            (kept if isinstance(done, Candidate) else rejected).append(done)  # type: ignore[arg-type]
    return len(accepted), kept, rejected


def _fault(c: Candidate) -> Diagnostic | None:
    from analyses import verify

    found = (d for bound in c.executable.kernels for d in verify(bound, None, brief=True).diagnostics)
    return next((d for d in found if d.severity == "error"), None)


def _compile(c: Candidate, cache_dir: Path | None) -> Candidate | Rejection:
    from lowering import build

    builds = []
    for emitted in c.executable.emitted:
        try:
            made = build(emitted, cache_dir=cache_dir)
        except CakeError as exc:
            return Rejection(c.seed, "compile", exc.diagnostic.rule, exc.diagnostic.message, False, c.executable)
        bad = next((d for d in made.diagnostics if d.severity == "error" or d.rule in REJECTING), None)
        if bad is not None:
            return Rejection(c.seed, "compile", bad.rule, bad.message, False, c.executable)
        builds.append(made)
    return replace(c, builds=tuple(builds))


def member_source(member: Member, target: str) -> Source:
    """A member's text, parsed. Raises CakeError: `tuning/bad-member`, or what is wrong with the text."""
    entry = corpus_kernel(member.kernel)
    if target not in entry.targets:
        raise _bad_member(f"{member.kernel} is not written for {target}, only for {', '.join(entry.targets)}")
    parsed = parse(entry.text(), entry.file)
    if parsed.file is None:
        raise CakeError(next(d for d in parsed.diagnostics if d.severity == "error"))
    names = frozenset(executable.tunables_of(parsed.file, entry.kernel))
    return Source(member, entry, parsed.file, content_id(parsed.file), names)


def _static_faults(done: Executable, contract: Contract) -> Iterator[Diagnostic]:
    from analyses.program import check_program
    from analyses.verifier import static_faults
    from cake_ir.binding.program import BoundProgram

    if isinstance(done.subject, BoundProgram):
        yield from (d for d in check_program(done.subject) if d.severity == "error")
    for bound in done.kernels:
        yield from static_faults(bound)
        if bound is done.subject:
            yield from narrow_sums(bound, contract)


def _same_names(done: Executable, contract: Contract) -> None:
    """A recipe is obeyed with the family's dims, so the kernel has to call them as the contract does."""
    other = [name for name in done.subject.dims if name not in contract.dims]
    if other:
        law = "Kernels of a family name their extents as the contract does."
        text = f"{done.name} calls an extent {other[0]}; {contract.name} has {', '.join(contract.dims)}"
        raise CakeError(error("tuning/dim-name", "language", text, contract=law))


def _hangs(rule: str) -> bool:
    from analyses.rules import registry

    page = registry().get(rule)
    return page is not None and page.rule.layer == HANG_LAYER


def _bad_member(message: str) -> CakeError:
    law = "A family's members are corpus kernels, and its domains name their tunables."
    return CakeError(error("tuning/bad-member", "language", message, contract=law))
