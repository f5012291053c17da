/** Which files a person has marked as seen: by chat, for the diff as it was then. Kept in this browser. */
import { useState } from "react";
import type { FileDiff } from "./git-diff";

const KEY = "chatd.viewed";
const MAX_CHATS = 30;
const MAX_FILES = 300;

type Stored = Readonly<Record<string, readonly string[]>>;

/** Names a file with exactly these changes. */
export function changeMark(root: string, file: FileDiff): string {
  let hash = 5381;
  const add = (text: string) => {
    for (let at = 0; at < text.length; at += 1) hash = (Math.imul(hash, 33) ^ text.charCodeAt(at)) >>> 0;
  };
  add(`${root} ${file.kind} ${file.oldPath ?? ""} ${file.modes?.join() ?? ""}`);
  for (const hunk of file.hunks) for (const line of hunk.lines) add(`${line.type}${line.text}\n`);
  return `${file.path} ${hash.toString(36)}`;
}

export function withMark(stored: Stored, chatId: string, mark: string, isSeen: boolean): Stored {
  const others = Object.entries(stored).filter(([id]) => id !== chatId);
  const marks = (stored[chatId] ?? []).filter((one) => one !== mark);
  const mine = isSeen ? [...marks, mark].slice(-MAX_FILES) : marks;
  return Object.fromEntries([...others.slice(-(MAX_CHATS - 1)), [chatId, mine]]);
}

function readStored(): Stored {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    if (typeof value !== "object" || value === null) return {};
    return Object.fromEntries(Object.entries(value).filter((entry): entry is [string, string[]] => Array.isArray(entry[1])));
  } catch {
    return {};
  }
}

export function useViewed(chatId: string): readonly [ReadonlySet<string>, (mark: string, isSeen: boolean) => void] {
  const [stored, setStored] = useState(readStored);
  const set = (mark: string, isSeen: boolean) => {
    const next = withMark(readStored(), chatId, mark, isSeen);
    setStored(next);
    try {
      localStorage.setItem(KEY, JSON.stringify(next));
    } catch {
      // Without storage the mark holds until the tab is closed.
    }
  };
  return [new Set(stored[chatId] ?? []), set];
}
