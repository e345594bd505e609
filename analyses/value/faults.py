"""Faults of the value reading: what went wrong, where in the text, and which agent was there.

Kinds are stable words: poison | race-proxy | race-unit | pending-register | phase | lag | arrivals | tx | deadlock | endless | bounds |
assume | where | out-twice | out-unwritten | exit | named-barrier | range32 | data-dependent | derived | input |
unsupported.
"""

from __future__ import annotations

from cake_ir.diagnostics import NOWHERE, CakeError, Diagnostic, Related, Span, Subject


class PoisonUse(Exception):
    """A decision or an address was computed from an undefined scalar. Becomes a `ValueFault` at the statement."""


class ValueFault(CakeError):
    """The program's values are not defined, or a contract of the machine is broken.

    kind: see the module. agent: "role[instance] of CTA n" or an engine. notes: earlier events that explain it. The
    diagnostic's rule is `value/KIND`.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        span: Span = NOWHERE,
        agent: str = "",
        notes: tuple[tuple[str, Span], ...] = (),
        op: str = "",
    ) -> None:
        self.kind, self.message, self.span, self.agent, self.notes, self.op = kind, message, span, agent, notes, op
        why = "".join(f"; {s}: {m}" for m, s in notes[:2])
        super().__init__(
            Diagnostic(
                rule=f"value/{kind}",
                family="numeric",
                severity="error",
                span=span,
                message=message + why + (f" ({agent})" if agent else ""),
                contract=CONTRACTS.get(kind, ""),
                related=tuple(Related(span=s, message=m) for m, s in notes),
                subject=Subject(role=agent.split("[")[0].split(" ")[0] or None, op=op or None),
            )
        )


CONTRACTS = {
    "poison": "No undefined value may reach global memory, an address, a mask or a branch.",
    "race-proxy": "Generic writes of shared memory reach the async proxy only after fence_async and an ordering.",
    "race-unit": "What one thread has waited for is known to the other threads of its unit after a sync.",
    "pending-register": "Registers of an asynchronous op belong to it until the wait that retires it.",
    "phase": "An arrival or a transaction of use n meets the phase n div stages of its slot.",
    "lag": "A wait comes while its slot is at the use waited for, or at the next one: parity tells no more.",
    "arrivals": "Every use of a barrier gets the same number of arrivals.",
    "tx": "The bytes announced by expect are the bytes that the copies deliver.",
    "deadlock": "Every agent ends.",
    "endless": "Every loop ends.",
    "bounds": "Indices lie inside the tensor; region starts are not negative; views lie inside their buffer.",
    "tma-coordinate": "A tensor copy starts at a multiple of 16 bytes of the innermost dimension.",
    "assume": "Assumed facts hold for the data.",
    "where": "The kernel is launched only for shapes that `where` admits.",
    "out-twice": "Every element of an Out tensor is written exactly once.",
    "out-unwritten": "Every element of an Out tensor is written exactly once.",
    "exit": "A CTA ends only after the bulk copies that read its shared memory have read it.",
    "named-barrier": "Each participant enters a named barrier once per round.",
    "range32": "Index values fit 32 bits.",
    "derived": "Derived arrival counts, bytes and participants hold for every launch.",
    "data-dependent": "Arrivals and bytes do not depend on data outside the control skeleton.",
}
