/** Loads a file of a chat's workspace in pieces, as text if it is text. */
import { ApiError, localError, readError, urlOf } from "@/api/client";

const PIECE_BYTES = 262_144;
/** More of a file is not shown in the page. */
export const MAX_SHOWN_BYTES = 4 * 1024 * 1024;

const PATH = "/api/v1/chats/{chat_id}/workspace/file";
const TIMEOUT_MS = 45_000;

/** What can be shown as more than its lines. */
export type RichKind = "markdown" | "html" | "table" | "notebook" | "pdf";

const RICH_KINDS: Readonly<Record<string, RichKind>> = {
  md: "markdown",
  markdown: "markdown",
  html: "html",
  htm: "html",
  csv: "table",
  tsv: "table",
  ipynb: "notebook",
  pdf: "pdf",
};

/** By the name, if the content fits: all but documents are text. */
export function richKind(path: string, kind: FileContent["kind"]): RichKind | null {
  const found = RICH_KINDS[path.slice(path.lastIndexOf(".") + 1).toLowerCase()] ?? null;
  return found !== null && (found === "pdf") === (kind === "binary") && kind !== "image" ? found : null;
}

export interface FileContent {
  readonly kind: "text" | "image" | "binary";
  readonly text: string;
  readonly size: number;
  readonly version: string;
  /** How many bytes of it are in `text`. */
  readonly loaded: number;
  /** The first bytes of a character that was cut. */
  readonly rest: Uint8Array;
}

export function fileUrl(chatId: string, path: string, query: { download?: boolean; page?: boolean; offset?: number; limit?: number } = {}): string {
  return urlOf(PATH, { path: { chat_id: chatId }, query: { path, ...query } });
}

/** The first piece, or after `before` the next one. A file that changed meanwhile is loaded from its beginning. */
export async function loadPiece(chatId: string, path: string, before: FileContent | null, signal: AbortSignal): Promise<FileContent> {
  const offset = before?.loaded ?? 0;
  const reply = await request(fileUrl(chatId, path, { offset, limit: PIECE_BYTES }), signal);
  const version = reply.headers.get("X-File-Version") ?? "";
  if (before !== null && before.version !== version) {
    await reply.body?.cancel();
    return loadPiece(chatId, path, null, signal);
  }
  const size = Number(reply.headers.get("X-File-Size") ?? 0);
  const kind = kindOf(reply.headers.get("Content-Type") ?? "");
  if (kind !== "text" && before === null) {
    await reply.body?.cancel();
    return { kind, text: "", size, version, loaded: 0, rest: new Uint8Array() };
  }
  const bytes = new Uint8Array(await reply.arrayBuffer());
  return appendBytes(before, bytes, size, version);
}

export function appendBytes(before: FileContent | null, bytes: Uint8Array, size: number, version: string): FileContent {
  const rest = before?.rest ?? new Uint8Array();
  const all = new Uint8Array(rest.length + bytes.length);
  all.set(rest);
  all.set(bytes, rest.length);
  const loaded = (before?.loaded ?? 0) + bytes.length;
  const isEnd = loaded >= size || bytes.length === 0;
  const whole = isEnd ? all.length : wholeCharacters(all);
  const text = (before?.text ?? "") + new TextDecoder().decode(all.subarray(0, whole));
  return { kind: "text", text, size, version, loaded, rest: all.slice(whole) };
}

/** The length without a character that is cut at the end. */
function wholeCharacters(bytes: Uint8Array): number {
  for (let back = 1; back <= Math.min(4, bytes.length); back += 1) {
    const byte = bytes[bytes.length - back] ?? 0;
    if (byte < 0x80) return bytes.length;
    if (byte >= 0xc0) {
      const needed = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
      return back < needed ? bytes.length - back : bytes.length;
    }
  }
  return bytes.length;
}

function kindOf(type: string): FileContent["kind"] {
  if (type.startsWith("text/plain")) return "text";
  return type.startsWith("image/") ? "image" : "binary";
}

async function request(url: string, signal: AbortSignal): Promise<Response> {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  try {
    const reply = await fetch(url, { credentials: "same-origin", signal: AbortSignal.any([signal, timeout]) });
    if (!reply.ok) throw await readError(reply);
    return reply;
  } catch (error) {
    if (error instanceof ApiError || signal.aborted) throw error;
    throw localError(timeout.aborted ? "timeout" : "network");
  }
}
