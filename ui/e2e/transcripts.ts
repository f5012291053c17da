/** Chats as files that the server imports: long ones, and ones that try to break out of the page. */
import type { ChatdServer } from "./chatd-server";

export interface ImportedMessage {
  readonly role: "user" | "assistant" | "tool";
  readonly content: readonly object[];
}

export const text = (words: string): object => ({ type: "text", text: words });

/** Imports the messages as one chat; returns its id. */
export async function importChat(server: ChatdServer, title: string, messages: readonly ImportedMessage[]): Promise<string> {
  const created_at = "2026-11-01T10:00:00Z";
  const lines: object[] = [
    { type: "chatd", version: 1 },
    { type: "chat", number: 1, title, labels: {}, created_at },
    ...messages.map((message, at) => ({ type: "message", chat: 1, id: at + 1, created_at, ...message })),
    { type: "end", chats: 1, messages: messages.length },
  ];
  const chat = await server.api<{ id: string }>("POST", "/chats/import", lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  return chat.id;
}

/** Prompts and answers in turn, with some code and a table now and then. */
export function longTranscript(count: number): ImportedMessage[] {
  return Array.from({ length: count }, (_, at) => {
    const number = at + 1;
    if (number % 2 === 1) return { role: "user", content: [text(`Question ${number}: what about row ${number}?`)] };
    const code = number % 10 === 0 ? `\n\n\`\`\`python\nprint(${number})\n\`\`\`\n` : "";
    const table = number % 14 === 0 ? `\n\n| a | b |\n|---|---|\n| ${number} | 2 |\n` : "";
    return { role: "assistant", content: [text(`Answer ${number}. It has **two** sentences.${code}${table}`)] };
  });
}
