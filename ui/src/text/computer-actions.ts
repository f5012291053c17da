/** What an agent did at a desktop, read from the parts of its chat: one frame for each call, with its picture. Pure. */
import type { Message, Part } from "@/chat-state/types";

export interface ActionFrame {
  readonly key: string;
  /** What was done: "Click", "Type". */
  readonly action: string;
  /** Where, or what: "(300, 200)", a text. */
  readonly subject: string;
  /** The picture that the model got afterwards; null if the call failed or still runs. */
  readonly url: string | null;
  /** What else the model was told: that a person has taken over, or why it failed. */
  readonly note: string;
}

type Fields = Readonly<Record<string, unknown>>;

const WORDS: Readonly<Record<string, string>> = {
  screenshot: "Look",
  zoom: "Zoom",
  cursor_position: "Find the pointer",
  mouse_move: "Move",
  left_click: "Click",
  right_click: "Right click",
  middle_click: "Middle click",
  double_click: "Double click",
  triple_click: "Triple click",
  left_click_drag: "Drag",
  left_mouse_down: "Hold the button",
  left_mouse_up: "Release the button",
  scroll: "Scroll",
  type: "Type",
  key: "Press",
  hold_key: "Hold",
  wait: "Wait",
};
const PICTURES = new Set(["image/png", "image/jpeg", "image/webp"]);

const fieldsOf = (value: unknown): Fields => (typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : {});
const textOf = (value: unknown): string => (typeof value === "string" ? value : "");

/** The action of a call, or the first of several. */
export function actionWords(args: unknown): Pick<ActionFrame, "action" | "subject"> {
  const fields = fieldsOf(args);
  const listed: readonly unknown[] | null = Array.isArray(fields.actions) ? fields.actions : null;
  if (listed === null) return oneAction(fields);
  const words = listed.map((one) => oneAction(fieldsOf(one)));
  if (words.length <= 1) return words[0] ?? { action: "Look", subject: "" };
  return { action: `${words.length} actions`, subject: words.map((one) => one.action).join(", ") };
}

function oneAction(fields: Fields): Pick<ActionFrame, "action" | "subject"> {
  const name = textOf(fields.action);
  return { action: WORDS[name] ?? name, subject: subjectOf(name, fields) };
}

function subjectOf(name: string, fields: Fields): string {
  if (name === "wait") return `${typeof fields.duration === "number" ? fields.duration : 1} s`;
  if (["type", "key", "hold_key"].includes(name)) return textOf(fields.text);
  if (name === "scroll" && textOf(fields.scroll_direction) !== "") return textOf(fields.scroll_direction);
  const point: unknown = fields.coordinate;
  return Array.isArray(point) && point.length === 2 ? `(${String(point[0])}, ${String(point[1])})` : "";
}

export function pictureUrl(result: unknown): string | null {
  const { mime_type: type, data } = fieldsOf(result);
  return typeof type === "string" && PICTURES.has(type) && typeof data === "string" && /^[A-Za-z0-9+/=]+$/.test(data) ? `data:${type};base64,${data}` : null;
}

/** The frames of a chat, oldest first. */
export function actionFrames(messages: readonly Message[]): readonly ActionFrame[] {
  const results = new Map<string, unknown>();
  const calls: { readonly key: string; readonly id: string; readonly args: unknown }[] = [];
  for (const message of messages) {
    for (const part of message.content) {
      if (isComputer(part, "tool-call")) calls.push({ key: `${message.id} ${part.tool_call_id}`, id: part.tool_call_id, args: part.args });
      else if (isComputer(part, "tool-result")) results.set(part.tool_call_id, part.result);
    }
  }
  return calls.map(({ key, id, args }) => {
    const result = results.get(id);
    const fields = fieldsOf(result);
    return { key, ...actionWords(args), url: pictureUrl(result), note: textOf(fields.error) || textOf(fields.text) };
  });
}

function isComputer<T extends "tool-call" | "tool-result">(part: Part, type: T): part is Extract<Part, { type: T }> {
  return part.type === type && (part as { tool_name?: string }).tool_name === "computer";
}

/** The newest subagent that the chat started to use a desktop. */
export function computerAgent(messages: readonly Message[]): string | null {
  for (const message of messages.toReversed()) {
    for (const part of message.content.toReversed()) {
      if (part.type !== "tool-result") continue;
      const { type, chat_id: chatId } = fieldsOf(part.result);
      if (type === "computer_use" && typeof chatId === "string") return chatId;
    }
  }
  return null;
}
