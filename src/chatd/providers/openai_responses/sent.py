"""What we send to the Responses API: the items of a conversation."""

import base64

from msgspec import UNSET, Raw, Struct, UnsetType

from chatd.domain.chat.parts import Json


class _Typed(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


class InputText(_Typed, frozen=True, kw_only=True, tag="input_text"):
    text: str


class InputImage(_Typed, frozen=True, kw_only=True, tag="input_image"):
    image_url: str
    detail: str


class InputFile(_Typed, frozen=True, kw_only=True, tag="input_file"):
    filename: str
    file_data: str


InputContent = InputText | InputImage | InputFile


class OutputText(_Typed, frozen=True, kw_only=True, tag="output_text"):
    text: str
    annotations: list[Raw]


class Refusal(_Typed, frozen=True, kw_only=True, tag="refusal"):
    refusal: str


class Message(_Typed, frozen=True, kw_only=True, tag="message"):
    role: str
    content: str | list[InputContent]
    phase: str | UnsetType = UNSET


class OutputMessage(_Typed, frozen=True, kw_only=True, tag="message"):
    id: str
    role: str
    status: str
    content: list[OutputText | Refusal]
    phase: str | UnsetType = UNSET


class FunctionCall(_Typed, frozen=True, kw_only=True, tag="function_call"):
    call_id: str
    name: str
    arguments: str
    id: str | UnsetType = UNSET


class FunctionCallOutput(_Typed, frozen=True, kw_only=True, tag="function_call_output"):
    call_id: str
    output: str | list[InputContent]


class Screenshot(_Typed, frozen=True, kw_only=True, tag="computer_screenshot"):
    image_url: str
    detail: str


class ComputerCallOutput(_Typed, frozen=True, kw_only=True, tag="computer_call_output"):
    call_id: str
    output: Screenshot
    acknowledged_safety_checks: Json = UNSET


InputItem = Message | OutputMessage | FunctionCall | FunctionCallOutput | ComputerCallOutput | Raw


def data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
