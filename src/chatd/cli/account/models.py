"""The work of `chatd models`."""

from chatd.cli.output import print_json, print_table
from chatd.client.resources import ModelChoice
from chatd.client.server import ServerApi
from chatd.terminal.pickers.model_texts import efforts_of

MAX_MODELS = 1000
_HEADINGS = ("NAME", "PROVIDER", "MODEL", "CONTEXT", "EFFORT", "")


async def list_models(api: ServerApi, *, every: bool, as_json: bool) -> None:
    listed = api.list_models(include_disabled=every)
    if as_json:
        print_json(await listed.raw_items(MAX_MODELS))
        return
    print_table(_HEADINGS, [model_row(model) for model in await listed.items(MAX_MODELS)])


def model_row(model: ModelChoice) -> tuple[str, ...]:
    notes = ["default" if model.is_default else "", "" if model.enabled else "disabled"]
    return (
        model.name,
        model.provider,
        model.model,
        context_text(model),
        effort_text(model),
        ", ".join(note for note in notes if note),
    )


def context_text(model: ModelChoice) -> str:
    learned = model.learned_context
    limit = model.context_limit or model.capabilities.context_limit
    if limit is None:
        return "" if learned is None else f"below {learned.tokens:,} (learned)"
    is_learned = learned is not None and learned.tokens == limit and not learned.is_bound
    return f"{limit:,} (learned)" if is_learned else f"{limit:,}"


def effort_text(model: ModelChoice) -> str:
    """What `--effort` may be, such as `low to high`; empty if that is not known."""
    efforts, found = efforts_of(model), model.reasoning_effort
    if efforts:
        return efforts[0] if len(efforts) == 1 else f"{efforts[0]} to {efforts[-1]}"
    return "" if found is None or found.max is None else f"up to {found.max}"
