"""Putting the values of parameters where a template says `${name}`. Pure.

Only in the seed and in the values of the environment; a name that no parameter has stays as it is.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from chatd.domain.workspace.entities import DirectorySeed, GitSeed, Seed, TemplateSpec

NAME: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_.-]*)\}")


def expand(spec: TemplateSpec, params: Mapping[str, str]) -> TemplateSpec:
    env = {name: _fill(value, params) for name, value in spec.env.items()}
    return msgspec.structs.replace(spec, env=env, seed=_seed(spec.seed, params))


def _seed(seed: Seed, params: Mapping[str, str]) -> Seed:
    match seed:
        case GitSeed():
            return GitSeed(url=_fill(seed.url, params), ref=_fill(seed.ref, params))
        case DirectorySeed():
            return DirectorySeed(path=_fill(seed.path, params))
        case _:
            return seed


def _fill(text: str, params: Mapping[str, str]) -> str:
    return NAME.sub(lambda found: params.get(found[1], found[0]), text)
