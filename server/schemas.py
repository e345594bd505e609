"""Tool schemas as published: strict arguments, one shared output schema, no padding.

A client loads every tool definition into a model's context, so titles that repeat the names are removed; the whole list
stays under 16 kB (a test measures it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import ValidationError

from server.errors import BadArgument
from server.results import Result, Status, clean

_OBJECT = {"type": "object"}
_TEXT = {"type": "string"}
_FINDING = {"type": "object", "required": ["rule", "severity", "line", "col", "message"]}

#: What every tool answers. Members that are empty are left out, so only two are required. Members of diagnostics
#: (source, contract, subject, related, evidence, fixes) are described in docs/server.md: seven copies of that in
#: tools/list would cost every client more than it gains.
OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["summary", "status"],
    "properties": {
        "summary": _TEXT,
        "status": {"enum": list(get_args(Status))},
        "code": _TEXT,
        "ids": {"type": "object", "additionalProperties": _TEXT},
        "diagnostics": {"type": "array", "items": _FINDING},
        "total": {"type": "integer"},
        "omitted": _OBJECT,
        "undecided": {"type": "array", "items": _TEXT},
        "data": _OBJECT,
        "artifacts": {"type": "array", "items": {"type": "object", "required": ["uri", "kind", "bytes", "lines"]}},
        "next": _TEXT,
    },
}


def slim(schema: Any) -> Any:
    """A copy of a JSON schema without generated titles and empty defaults (what is not required may be left out), and with unions of
    plain types in their short form.

    A property named `title` or `default` stays: its value is a schema.
    """
    if isinstance(schema, dict):
        union = schema.get("anyOf")
        if union and all(set(u) == {"type"} for u in union):
            rest = {k: slim(v) for k, v in schema.items() if k not in ("anyOf", "title")}
            return {"type": sorted({u["type"] for u in union}), **rest}
        empty = [
            k
            for k, v in schema.items()
            if (k == "title" and isinstance(v, str)) or (k == "default" and v in ("", [], {}))
        ]
        return {k: slim(v) for k, v in schema.items() if k not in empty}
    return [slim(v) for v in schema] if isinstance(schema, list) else schema


def argument_error(tool: str, known: list[str], exc: ValidationError) -> Result:
    """One line per wrong argument, without pydantic's links and without echoing values."""
    parts = []
    for error in exc.errors(include_url=False, include_context=False, include_input=False)[:6]:
        where = clean(".".join(str(p) for p in error["loc"] if not str(p).startswith("function-")), 80)
        if error["type"] == "extra_forbidden":
            parts.append(f"unknown argument {where!r}")
        elif error["type"] == "missing":
            parts.append(f"missing argument {where!r}")
        else:
            parts.append(f"{where}: {clean(error['msg'], 160)}")
    return BadArgument(f"{tool}: {'; '.join(parts)}", f"arguments are {', '.join(known)}").result()


class StrictTool(Tool):
    """A tool that refuses unknown argument names and answers bad arguments in the common envelope."""

    @classmethod
    def make(cls, fn: Callable[..., Any], *, name: str, description: str, annotations: ToolAnnotations) -> StrictTool:
        """The tool of a function or method; the schemas of a method are made once, for whatever object it is bound to."""
        plain = getattr(fn, "__func__", fn)
        key = (plain, name, description)
        if key not in _MADE:  # kept without the object, which may end
            _MADE[key] = cls._of(fn, name, description, annotations).model_copy(update={"fn": plain})
        return _MADE[key].model_copy(update={"fn": fn, "annotations": annotations})

    @classmethod
    def _of(cls, fn: Callable[..., Any], name: str, description: str, annotations: ToolAnnotations) -> StrictTool:
        tool = cls.from_function(
            fn, name=name, description=description, annotations=annotations, structured_output=False
        )
        model = tool.fn_metadata.arg_model
        model.model_config["extra"] = "forbid"
        model.model_rebuild(force=True)
        tool.parameters = slim(model.model_json_schema(by_alias=True))
        tool.fn_metadata.output_schema = OUTPUT_SCHEMA
        assert isinstance(tool, StrictTool)
        return tool

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        try:
            self.fn_metadata.validate_arguments(arguments)
        except ValidationError as exc:
            return call_result(argument_error(self.name, list(self.parameters.get("properties", {})), exc))
        except RecursionError:
            return call_result(BadArgument(f"{self.name}: the arguments are nested too deeply").result())
        return await super().run(arguments, context, convert_result)


_MADE: dict[tuple[Callable[..., Any], str, str], StrictTool] = {}


def call_result(result: Result) -> CallToolResult:
    """The wire form: complete structured content, a compact text copy, links to artifacts.

    `isError` only for wrong arguments, unknown ids and infrastructure; a rejected program is an answer.
    """
    from mcp_types import ResourceLink

    links = [ResourceLink(type="resource_link", uri=a.uri, name=a.kind, size=a.bytes) for a in result.artifacts]
    return CallToolResult(
        content=[TextContent(type="text", text=result.text()), *links],
        structured_content=result.compact(),
        is_error=result.status in ("error", "cancelled"),
    )
