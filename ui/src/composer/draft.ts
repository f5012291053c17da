/** A message that is being written: its text, what is attached, and with which model it will be sent. */
import type { Effort, InputPart } from "@/chat-state/outbox";
import type { ReferencePart } from "@/platform/actions";

export interface Attachment {
  /** Of this browser; the server's id is `fileId`. */
  readonly id: string;
  readonly name: string;
  readonly mediaType: string;
  readonly size: number;
  readonly state: "uploading" | "done" | "failed";
  /** From 0 to 1. */
  readonly progress: number;
  readonly fileId: string | null;
  readonly error: string | null;
  /** An image of this browser, until the page is reloaded. */
  readonly previewUrl: string | null;
}

export interface ChosenWorkspace {
  readonly id: string;
  readonly name: string;
}

export interface MessageDraft {
  readonly text: string;
  readonly references: readonly ReferencePart[];
  readonly attachments: readonly Attachment[];
  /** Null: that of the chat, or the default. */
  readonly modelConfigId: string | null;
  readonly effort: Effort | null;
  /** The chat is in plan mode from this message on. */
  readonly isPlan: boolean;
  /** Of a new chat: the MCP servers that it uses; null: those that are on by default. */
  readonly mcpServerIds: readonly string[] | null;
  /** Of a new chat: where it works; null: in a workspace of its own, once a tool needs one. */
  readonly workspace: ChosenWorkspace | null;
}

export const EMPTY_DRAFT: MessageDraft = {
  text: "",
  references: [],
  attachments: [],
  modelConfigId: null,
  effort: null,
  isPlan: false,
  mcpServerIds: null,
  workspace: null,
};

export function isEmpty(draft: MessageDraft): boolean {
  return draft.text.trim() === "" && draft.references.length === 0 && draft.attachments.length === 0;
}

export function isUploading(draft: MessageDraft): boolean {
  return draft.attachments.some((one) => one.state === "uploading");
}

export function hasFailedUpload(draft: MessageDraft): boolean {
  return draft.attachments.some((one) => one.state === "failed");
}

/** The command of a text that begins with an exclamation mark; null: it is a message. */
export function commandOf(draft: MessageDraft): string | null {
  const text = draft.text.trim();
  const command = text.startsWith("!") ? text.slice(1).trim() : "";
  const isAlone = draft.attachments.length === 0 && draft.references.length === 0;
  return command !== "" && isAlone ? command : null;
}

/** The parts of the message: what it is about first, then what it says. A command is alone. */
export function contentOf(draft: MessageDraft): InputPart[] {
  const command = commandOf(draft);
  if (command !== null) return [{ type: "command", command }];
  const references = draft.references.map((part): InputPart => ({
    type: "file-reference",
    file_name: part.file_name,
    start_line: part.start_line,
    end_line: part.end_line,
    content: part.content,
  }));
  const files = draft.attachments.flatMap((one): InputPart[] => (one.fileId === null ? [] : [{ type: "file", file_id: one.fileId }]));
  const text: InputPart[] = draft.text.trim() === "" ? [] : [{ type: "text", text: draft.text.trim() }];
  return [...references, ...files, ...text];
}

interface KnownParts {
  readonly type: string;
}

/** The draft that a message came from, to edit it. Parts that cannot be sent again are left out. */
export function draftOf(content: readonly KnownParts[]): MessageDraft {
  const texts: string[] = [];
  const references: ReferencePart[] = [];
  const attachments: Attachment[] = [];
  for (const part of content as readonly (InputPart | FileOfMessage)[]) {
    if (part.type === "text") texts.push(part.text);
    else if (part.type === "command") texts.push(`!${part.command}`);
    else if (part.type === "file-reference") references.push(part);
    else if (isStoredFile(part)) attachments.push(storedAttachment(part));
  }
  return { ...EMPTY_DRAFT, text: texts.join("\n\n"), references, attachments };
}

interface FileOfMessage {
  readonly type: "file";
  readonly file_id?: string | null;
  readonly name?: string | null;
  readonly media_type?: string;
}

function isStoredFile(part: { type: string }): part is FileOfMessage & { file_id: string } {
  return part.type === "file" && typeof (part as FileOfMessage).file_id === "string";
}

function storedAttachment(part: FileOfMessage & { file_id: string }): Attachment {
  return {
    id: part.file_id,
    fileId: part.file_id,
    name: part.name ?? "file",
    mediaType: part.media_type ?? "",
    size: 0,
    state: "done",
    progress: 1,
    error: null,
    previewUrl: null,
  };
}
