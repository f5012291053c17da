"""What the decoders of all APIs have in common, on recorded streams."""

import pytest

from chatd.domain.model.protocol import Finished, StreamFailed
from tests.support.providers.recorded import APIS
from tests.support.providers.stream_reader import read_bytewise, read_cut

RECORDED = [(api, name) for api, streams in APIS.items() for name in streams.names]
recorded = pytest.mark.parametrize(("api", "name"), RECORDED)


@recorded
def test_a_stream_decodes_the_same_wherever_it_is_cut(api: str, name: str) -> None:
    streams = APIS[api]
    data, whole = streams.stream(name), streams.read(name)
    assert read_bytewise(lambda: streams.new_decoder(name), data) == whole
    for at in range(len(data)):
        assert read_cut(lambda: streams.new_decoder(name), data, at) == whole


@recorded
def test_a_stream_decodes_the_same_with_other_line_ends(api: str, name: str) -> None:
    streams = APIS[api]
    data, whole = streams.stream(name).replace(b"\r\n", b"\n"), streams.read(name)
    for line_end in (b"\n", b"\r\n", b"\r"):
        assert streams.decode(data.replace(b"\n", line_end), name) == whole


@recorded
def test_the_last_event_needs_no_blank_line(api: str, name: str) -> None:
    streams = APIS[api]
    assert streams.decode(streams.stream(name).rstrip(b"\r\n"), name) == streams.read(name)


@recorded
def test_a_stream_has_one_final_event(api: str, name: str) -> None:
    events = APIS[api].read(name)
    assert [e for e in events if isinstance(e, Finished | StreamFailed)] == events[-1:]


@pytest.mark.parametrize(
    ("api", "name"), [(api, name) for api, name in RECORDED if api in ("chat", "responses")]
)
def test_a_closed_decoder_gives_no_events(api: str, name: str) -> None:
    streams = APIS[api]
    decoder = streams.new_decoder(name)
    decoder.feed(streams.stream(name))
    decoder.close()
    assert decoder.feed(streams.stream("text")) == []
    assert decoder.close() == []
