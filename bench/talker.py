"""A model's API that talks at a steady pace, in a process of its own: `python -m bench.talker`.

Owns three wires' streams and the pace: one event in each TCP segment, as vendors send them, so
that a listener wakes once for each. The path says what to send, `/<kind>/<deltas>/v1/...`. It
prints its port and ends with whoever has started it: when its standard input is closed.
"""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from chatd.bench.provider import chunk

PACE_S: Final = 0.0008
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_WORDS: Final = ("the ", "build ", "needs ", "a ", "file ", "that ", "nobody ", "has ", "written ")
_INPUT: Final = ('{"content":"', '"}')

Fields = dict[str, object]


def pieces(kind: str, deltas: int) -> list[str]:
    """What is said. A tool's input is one JSON object, its ends pieces of their own."""
    if kind == "text":
        return [_WORDS[number % len(_WORDS)] for number in range(deltas)]
    return [_INPUT[0], *pieces("text", deltas - 2), _INPUT[1]]


def _named(kind: str, **fields: object) -> bytes:
    data = msgspec.json.encode({"type": kind, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _anthropic(kind: str, said: Sequence[str]) -> Iterator[bytes]:
    usage = {"input_tokens": 1834, "output_tokens": 1}
    message: Fields = {"id": "msg_01", "type": "message", "role": "assistant", "model": "claude"}
    message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    block: Fields = {"type": "text", "text": ""}
    delta, field, reason = "text_delta", "text", "end_turn"
    if kind == "tool":
        block = {"type": "tool_use", "id": "toolu_01", "name": "write_file", "input": {}}
        delta, field, reason = "input_json_delta", "partial_json", "tool_use"
    yield _named("message_start", message=message)
    yield _named("content_block_start", index=0, content_block=block)
    for piece in said:
        yield _named("content_block_delta", index=0, delta={"type": delta, field: piece})
    yield _named("content_block_stop", index=0)
    stop: Fields = {"stop_reason": reason, "stop_sequence": None}
    yield _named("message_delta", delta=stop, usage={"output_tokens": len(said)})
    yield _named("message_stop")


def _response(status: str, output: list[Fields], usage: Fields | None) -> Fields:
    known: Fields = {"id": "resp_01", "object": "response", "created_at": 1794780000}
    known |= {"status": status, "error": None, "incomplete_details": None, "model": "gpt-4.1"}
    known |= {"output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {**known, "usage": usage}


def _text_item(whole: str, status: str) -> Fields:
    part: Fields = {"type": "output_text", "annotations": [], "logprobs": [], "text": whole}
    item: Fields = {"id": "item_01", "type": "message", "status": status, "role": "assistant"}
    return {**item, "content": [part] if whole else []}


def _call_item(whole: str, status: str) -> Fields:
    item: Fields = {"id": "item_01", "type": "function_call", "status": status}
    return {**item, "arguments": whole, "call_id": "call_01", "name": "write_file"}


def _responses(kind: str, said: Sequence[str]) -> Iterator[bytes]:
    whole = "".join(said)
    place: Fields = {"item_id": "item_01", "output_index": 0}
    item, name = _call_item, "response.function_call_arguments"
    extra: Fields = {}
    ending: Fields = {"arguments": whole, "name": "write_file"}
    if kind == "text":
        item, name = _text_item, "response.output_text"
        extra = {"content_index": 0, "logprobs": []}
        ending = {"text": whole}
    begun: list[tuple[str, Fields]] = [
        ("response.created", {"response": _response("in_progress", [], None)}),
        ("response.in_progress", {"response": _response("in_progress", [], None)}),
        ("response.output_item.added", {"output_index": 0, "item": item("", "in_progress")}),
    ]
    talk: list[tuple[str, Fields]] = [
        (f"{name}.delta", {**place, **extra, "delta": piece, "obfuscation": "xK9xK9xK9"})
        for piece in said
    ]
    done = item(whole, "completed")
    usage: Fields = {"input_tokens": 1834, "output_tokens": len(said), "total_tokens": 9999}
    usage |= {"input_tokens_details": {"cached_tokens": 0}}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
    ended: list[tuple[str, Fields]] = [
        (f"{name}.done", {**place, **extra, **ending}),
        ("response.output_item.done", {"output_index": 0, "item": done}),
        ("response.completed", {"response": _response("completed", [done], usage)}),
    ]
    for number, (event, fields) in enumerate([*begun, *talk, *ended]):
        yield _named(event, sequence_number=number, **fields)


def _chat(kind: str, said: Sequence[str]) -> Iterator[bytes]:
    if kind == "text":
        yield chunk({"role": "assistant", "content": "", "refusal": None})
        deltas: list[Fields] = [{"content": piece} for piece in said]
    else:
        function: Fields = {"name": "write_file", "arguments": ""}
        call: Fields = {"index": 0, "id": "call_01", "type": "function", "function": function}
        yield chunk({"role": "assistant", "content": None, "tool_calls": [call]})
        deltas = [
            {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in said
        ]
    for delta in deltas:
        yield chunk(delta)
    yield chunk({}, "stop" if kind == "text" else "tool_calls")
    yield b"data: [DONE]\n\n"


_WIRES: Final[Mapping[str, Callable[[str, Sequence[str]], Iterator[bytes]]]] = {
    "messages": _anthropic,
    "responses": _responses,
    "completions": _chat,
}


def _serve(line: socket.socket) -> None:
    """One connection, request after request, until the client leaves."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with line, line.makefile("rb") as asked:
        while start := asked.readline():
            path = start.split()[1].decode().partition("?")[0]
            length = 0
            while (header := asked.readline().strip().lower()) != b"":
                if header.startswith(b"content-length:"):
                    length = int(header.partition(b":")[2])
            asked.read(length)
            _talk(line, path)


def _talk(line: socket.socket, path: str) -> None:
    _, kind, deltas, *_, wire = path.split("/")
    events = list(_WIRES[wire](kind, pieces(kind, int(deltas))))
    line.sendall(_HEAD)
    for event in events:
        time.sleep(PACE_S)
        line.sendall(b"%x\r\n%b\r\n" % (len(event), event))
    line.sendall(b"0\r\n\r\n")


def _accept(server: socket.socket) -> None:
    while True:
        line, _ = server.accept()
        threading.Thread(target=_serve, args=(line,), daemon=True).start()


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_accept, args=(server,), daemon=True).start()
        print(server.getsockname()[1], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
