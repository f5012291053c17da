/** Drafts by chat. They survive a change of the chat and a reload; uploads go on meanwhile. */
import { useCallback, useSyncExternalStore } from "react";
import { ApiError, csrfHeaders, errorBody, localError } from "@/api/client";
import type { components } from "@/api/schema";
import { newUuid } from "@/platform/plain-http";
import { type Attachment, EMPTY_DRAFT, isEmpty, type MessageDraft } from "./draft";

const PREFIX = "chatd.draft.";
const MAX_STORED = 40;
const MAX_STORED_CHARS = 200_000;
const SAVE_AFTER_MS = 300;

type Change = (draft: MessageDraft) => MessageDraft;

const drafts = new Map<string, MessageDraft>();
const listeners = new Set<() => void>();
const unsaved = new Set<string>();
let timer: ReturnType<typeof setTimeout> | undefined;

function readDraft(key: string): MessageDraft {
  let draft = drafts.get(key);
  if (draft === undefined) {
    draft = stored(key);
    drafts.set(key, draft);
  }
  return draft;
}

export function changeDraft(key: string, change: Change): void {
  const before = readDraft(key);
  const after = change(before);
  if (after === before) return;
  drafts.set(key, after);
  unsaved.add(key);
  timer ??= setTimeout(saveDrafts, SAVE_AFTER_MS);
  for (const listener of [...listeners]) listener();
}

/** The model stays chosen; what was said is gone. */
export function clearDraft(key: string): void {
  changeDraft(key, ({ modelConfigId, effort }) => ({ ...EMPTY_DRAFT, modelConfigId, effort }));
  saveDrafts();
}

/** Also when the page is hidden, which may be its last moment. */
export function saveDrafts(): void {
  clearTimeout(timer);
  timer = undefined;
  for (const key of unsaved) save(key, readDraft(key));
  unsaved.clear();
}

function subscribe(listener: () => void): () => void {
  if (listeners.size === 0) window.addEventListener("pagehide", saveDrafts);
  listeners.add(listener);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) window.removeEventListener("pagehide", saveDrafts);
  };
}

export function useDraft(key: string): [MessageDraft, (change: Change) => void] {
  const draft = useSyncExternalStore(subscribe, () => readDraft(key));
  const change = useCallback((next: Change) => changeDraft(key, next), [key]);
  return [draft, change];
}

function stored(key: string): MessageDraft {
  try {
    const text = localStorage.getItem(PREFIX + key);
    return text === null ? EMPTY_DRAFT : { ...EMPTY_DRAFT, ...(JSON.parse(text) as { draft: MessageDraft }).draft };
  } catch {
    return EMPTY_DRAFT;
  }
}

function save(key: string, draft: MessageDraft): void {
  try {
    if (isEmpty(draft) && draft.modelConfigId === null && draft.effort === null && !draft.isPlan && draft.mcpServerIds === null && draft.workspace === null) {
      localStorage.removeItem(PREFIX + key);
      return;
    }
    const attachments = draft.attachments.filter((one) => one.state === "done").map((one) => ({ ...one, previewUrl: null }));
    const text = JSON.stringify({ at: Date.now(), draft: { ...draft, attachments } });
    if (text.length > MAX_STORED_CHARS) return;
    localStorage.setItem(PREFIX + key, text);
    dropOldest();
  } catch {
    // Without storage the draft lasts as long as the page.
  }
}

function dropOldest(): void {
  const keys = Array.from({ length: localStorage.length }, (_, index) => localStorage.key(index) ?? "");
  const own = keys.filter((key) => key.startsWith(PREFIX));
  if (own.length <= MAX_STORED) return;
  const at = (key: string) => (JSON.parse(localStorage.getItem(key) ?? "{}") as { at?: number }).at ?? 0;
  const [oldest] = own.sort((a, b) => at(a) - at(b));
  if (oldest !== undefined) localStorage.removeItem(oldest);
}

// Files of a draft on their way to the server. The draft shows their progress and their errors.

type FileReply = components["schemas"]["FileReply"];

export const MAX_FILES = 10;
const MAX_FILE_BYTES = 20 * 1024 * 1024;
const PASTE_AS_FILE_LINES = 10;
const PASTE_AS_FILE_CHARS = 1000;
const UPLOAD_TIMEOUT_MS = 10 * 60_000;
const running = new Map<string, XMLHttpRequest>();

/** Long text that was pasted becomes a file: the message stays readable. */
export function isLongPaste(text: string): boolean {
  return text.length >= PASTE_AS_FILE_CHARS || text.split("\n").length >= PASTE_AS_FILE_LINES;
}

export function pastedFile(text: string): File {
  return new File([text], "pasted-text.txt", { type: "text/plain" });
}

/** Adds files to the draft. Returns a reason for those that were left out. */
export function addFiles(draftKey: string, known: number, files: readonly File[]): string | null {
  const room = Math.max(0, MAX_FILES - known);
  for (const file of files.slice(0, room)) addFile(draftKey, file);
  return files.length > room ? `A message can have ${MAX_FILES} files. ${files.length - room} were left out.` : null;
}

function addFile(draftKey: string, file: File): void {
  const isImage = file.type.startsWith("image/");
  const attachment: Attachment = {
    id: newUuid(),
    name: file.name === "" ? "file" : file.name,
    mediaType: file.type,
    size: file.size,
    state: "uploading",
    progress: 0,
    fileId: null,
    error: null,
    previewUrl: isImage ? URL.createObjectURL(file) : null,
  };
  changeDraft(draftKey, (draft) => ({ ...draft, attachments: [...draft.attachments, attachment] }));
  const show = (change: Partial<Attachment>) => showChange(draftKey, attachment.id, change);
  if (file.size > MAX_FILE_BYTES) {
    show({ state: "failed", error: "Larger than 20 MB" });
    return;
  }
  upload(attachment.id, file, (progress) => show({ progress })).then(
    (reply) => show({ state: "done", progress: 1, fileId: reply.id, name: reply.name ?? attachment.name, mediaType: reply.media_type }),
    (error: unknown) => show({ state: "failed", error: error instanceof ApiError ? error.message : "The upload failed." }),
  );
}

export function removeFile(draftKey: string, attachment: Attachment): void {
  running.get(attachment.id)?.abort();
  if (attachment.previewUrl !== null) URL.revokeObjectURL(attachment.previewUrl);
  changeDraft(draftKey, (draft) => ({
    ...draft,
    attachments: draft.attachments.filter((one) => one.id !== attachment.id),
  }));
}

function showChange(draftKey: string, id: string, change: Partial<Attachment>): void {
  changeDraft(draftKey, (draft) => {
    if (!draft.attachments.some((one) => one.id === id)) return draft;
    return { ...draft, attachments: draft.attachments.map((one) => (one.id === id ? { ...one, ...change } : one)) };
  });
}

/** `fetch` does not tell how much of a body was sent. */
async function upload(id: string, file: File, onProgress: (part: number) => void): Promise<FileReply> {
  const headers = await csrfHeaders();
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    running.set(id, request);
    request.open("POST", "/api/v1/files");
    request.timeout = UPLOAD_TIMEOUT_MS;
    request.setRequestHeader("Content-Type", file.type === "" ? "application/octet-stream" : file.type);
    request.setRequestHeader("Content-Disposition", disposition(file.name));
    request.setRequestHeader("Idempotency-Key", id);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => onProgress(event.total === 0 ? 0 : event.loaded / event.total);
    request.onerror = () => reject(localError("network"));
    request.ontimeout = () => reject(localError("timeout"));
    request.onabort = () => reject(localError("network"));
    request.onload = () => {
      if (request.status === 201) resolve(JSON.parse(request.responseText) as FileReply);
      else reject(new ApiError(request.status, errorBody(request.status, request.responseText)));
    };
    request.onloadend = () => running.delete(id);
    request.send(file);
  });
}

function disposition(name: string): string {
  return name === "" ? "attachment" : `attachment; filename*=UTF-8''${encodeURIComponent(name).replace(/['()*]/g, escape)}`;
}

function escape(char: string): string {
  return `%${char.charCodeAt(0).toString(16).toUpperCase()}`;
}
