"""The work of `chatd models`."""

import msgspec

from chatd.cli.chats.work import read_items
from chatd.cli.output import print_json, print_table
from chatd.client.resources import ListedModel
from chatd.client.server import ServerApi

MAX_MODELS = 1000
_HEADINGS = ("NAME", "PROVIDER", "MODEL", "CONTEXT", "EFFORT", "")


async def list_models(api: ServerApi, *, every: bool, as_json: bool) -> None:
    items = await read_items(api, "/models", MAX_MODELS, include_disabled=every)
    if as_json:
        print_json(items)
        return
    models = [msgspec.json.decode(item, type=ListedModel) for item in items]
    print_table(_HEADINGS, [model_row(model) for model in models])


def model_row(model: ListedModel) -> tuple[str, ...]:
    notes = ["default" if model.is_default else "", "" if model.enabled else "disabled"]
    context = "" if model.context_limit is None else f"{model.context_limit:,}"
    return (
        model.name,
        model.provider,
        model.model,
        context,
        effort_text(model),
        ", ".join(note for note in notes if note),
    )


def effort_text(model: ListedModel) -> str:
    """What `--effort` may be, such as `up to high`."""
    found = model.reasoning_effort
    return "" if found is None or found.max is None else f"up to {found.max}"
