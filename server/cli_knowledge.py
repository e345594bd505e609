"""Listing commands: rules, ops, targets, corpus, contracts, doctor. They need no workspace (doctor aside)."""

from __future__ import annotations

import click

from server.cli_common import finish, finish_rows, json_option


@click.command()
@click.argument("rule")
@json_option
@click.pass_context
def explain(ctx: click.Context, rule: str, as_json: bool) -> None:
    """Show the page of a RULE (or an op)."""
    from server.terminal import show_page

    finish(ctx, ctx.obj.catalog().explain(rule), as_json, show=show_page)


@click.command()
@click.argument("name", required=False)
@json_option
@click.pass_context
def ops(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """List the ops, or show one."""
    from server.terminal import show_page

    result = ctx.obj.catalog().ops(name)
    if name:
        finish(ctx, result, as_json, show=show_page)
    finish_rows(ctx, result, as_json, "ops")


@click.command()
@click.argument("name", required=False)
@json_option
@click.pass_context
def targets(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """List the targets, or show one with the source of every fact."""
    from server.terminal import show_data

    result = ctx.obj.catalog().targets(name)
    if name:
        finish(ctx, result, as_json, show=show_data)
    finish_rows(ctx, result, as_json, "targets")


@click.command()
@json_option
@click.pass_context
def rules(ctx: click.Context, as_json: bool) -> None:
    """List the rules."""
    finish_rows(ctx, ctx.obj.catalog().rules(), as_json, "rules")


@click.command()
@json_option
@click.pass_context
def corpus(ctx: click.Context, as_json: bool) -> None:
    """List the kernels that ship with Cake."""
    finish_rows(ctx, ctx.obj.catalog().corpus(), as_json, "kernels")


@click.command("contracts")
@click.argument("name", required=False)
@json_option
@click.pass_context
def contracts_command(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """List the workload contracts, or show one."""
    from server.terminal import show_page

    catalog = ctx.obj.catalog()
    if name:
        from server.results import Result

        page = Result(summary=f"contract {name}", status="ok", data={"page": catalog.page(f"cake://contracts/{name}")})
        finish(ctx, page, as_json, show=show_page)
    if as_json:
        for line in catalog.bad_contracts():  # the listing is a bare list
            click.echo(f"warning[contract/bad-file]: {line}", err=True)
    finish_rows(ctx, catalog.contracts(), as_json, "contracts")


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Say what works on this machine and what does not."""
    from server.terminal import show_checks

    finish(ctx, ctx.obj.engine(keep=False).catalog.doctor(), as_json, show=show_checks)


COMMANDS = (explain, ops, targets, rules, corpus, contracts_command, doctor)
