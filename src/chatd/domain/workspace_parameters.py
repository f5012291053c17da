"""The values of a template's parameters: which are used for a build, and which are refused."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from chatd.domain.workspace import Parameter, Problem

MOST_GIVEN: Final = 100
MOST_BYTES: Final = 16 * 1024
_UNFIT: Final = re.compile("[\0\ud800-\udfff]")


class Resolved(Struct, frozen=True, kw_only=True):
    """`values` are worth something only if there are no problems."""

    values: Mapping[str, str]
    problems: tuple[Problem, ...] = ()


def resolve_parameters(
    parameters: Sequence[Parameter],
    given: Mapping[str, str],
    before: Mapping[str, str] | None = None,
) -> Resolved:
    """What is given, else what the build before had, else the default. `before` is None for the
    first build, where nothing is yet settled."""
    known = {parameter.name: parameter for parameter in parameters}
    problems = [
        Problem(field=name, detail="The template has no such parameter.")
        for name in given
        if name not in known
    ]
    if len(given) > MOST_GIVEN:
        problems = [Problem(field="parameters", detail=f"At most {MOST_GIVEN} can be given.")]
        return Resolved(values={}, problems=tuple(problems))
    values: dict[str, str] = {}
    for parameter in parameters:
        value = _value(parameter, given, before or {})
        if value is not None:
            values[parameter.name] = value
        problems += _problems(parameter, value, given, before)
    return Resolved(values=values, problems=tuple(problems))


def _value(parameter: Parameter, given: Mapping[str, str], before: Mapping[str, str]) -> str | None:
    if parameter.name in given:
        return given[parameter.name]
    if not parameter.ephemeral and parameter.name in before:
        return before[parameter.name]
    return parameter.default


def _problems(
    parameter: Parameter,
    value: str | None,
    given: Mapping[str, str],
    before: Mapping[str, str] | None,
) -> Iterator[Problem]:
    if value is None:
        if parameter.required:
            yield Problem(field=parameter.name, detail="A value is required.")
        return
    was = (before or {}).get(parameter.name)
    settled = before is not None and not parameter.mutable and was is not None
    if settled and parameter.name in given and value != was:
        yield Problem(field=parameter.name, detail="It cannot be changed after the first build.")
    elif (wrong := _wrong(parameter, value)) is not None:
        yield Problem(field=parameter.name, detail=wrong)


def _wrong(parameter: Parameter, value: str) -> str | None:
    if len(value.encode(errors="replace")) > MOST_BYTES:
        return f"The value is longer than {MOST_BYTES} bytes."
    if _UNFIT.search(value) is not None:
        return "The value has characters in it that no program could be given."
    if parameter.type == "list(string)":
        return _wrong_list(parameter, value)
    if parameter.options and value not in {option.value for option in parameter.options}:
        return _not_an_option(parameter)
    match parameter.type:
        case "number":
            return _wrong_number(parameter, value)
        case "bool":
            return None if value in ("true", "false") else "It must be true or false."
        case "string":
            return _wrong_text(parameter, value)


def _wrong_list(parameter: Parameter, value: str) -> str | None:
    try:
        items = msgspec.json.decode(value, type=list[str])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return "It must be a JSON list of texts."
    allowed = {option.value for option in parameter.options}
    return _not_an_option(parameter) if allowed and not allowed.issuperset(items) else None


def _not_an_option(parameter: Parameter) -> str:
    return f"It must be one of: {', '.join(option.value for option in parameter.options)}."


def _wrong_number(parameter: Parameter, value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return "It must be a number."
    if not math.isfinite(number):
        return "It must be a number."
    if parameter.min is not None and number < parameter.min:
        return f"It must be at least {parameter.min:g}."
    if parameter.max is not None and number > parameter.max:
        return f"It must be at most {parameter.max:g}."
    return None


def _wrong_text(parameter: Parameter, value: str) -> str | None:
    if not parameter.regex:
        return None
    try:
        fits = re.search(parameter.regex, value) is not None
    except re.error:
        return "The template's own rule for it is broken; whoever made the template must mend it."
    return None if fits else parameter.regex_error or f"It must match {parameter.regex}."
