import { describe, expect, it } from "vitest";
import type { Message } from "@/chat-state/types";
import { actionFrames, actionWords, computerAgent } from "./computer-actions";

const message = (id: number, ...content: unknown[]): Message => ({ id, role: "assistant", content }) as unknown as Message;
const call = (id: string, args: unknown) => ({ type: "tool-call", tool_call_id: id, tool_name: "computer", args });
const result = (id: string, value: unknown) => ({ type: "tool-result", tool_call_id: id, tool_name: "computer", result: value });
const PICTURE = { mime_type: "image/png", data: "iVBORw0KGgo=" };

describe("an action in words", () => {
  it.each([
    [{ action: "left_click", coordinate: [0, 20] }, "Click", "(0, 20)"],
    [{ action: "type", text: "hello" }, "Type", "hello"],
    [{ action: "key", text: "ctrl+s" }, "Press", "ctrl+s"],
    [{ action: "wait", duration: 2.5 }, "Wait", "2.5 s"],
    [{ action: "wait" }, "Wait", "1 s"],
    [{ action: "scroll", scroll_direction: "up", coordinate: [1, 2] }, "Scroll", "up"],
    [{ actions: [{ action: "mouse_move", coordinate: [1, 2] }] }, "Move", "(1, 2)"],
    [{ actions: [{ action: "left_click" }, { action: "type", text: "a" }] }, "2 actions", "Click, Type"],
    [{ actions: [] }, "Look", ""],
    [{ action: "dance" }, "dance", ""],
    ["no object", "", ""],
  ])("%j", (args, action, subject) => {
    expect(actionWords(args)).toEqual({ action, subject });
  });
});

describe("the frames of a chat", () => {
  it("are its calls with their pictures, and what the model was told", () => {
    const found = actionFrames([
      message(1, call("a", { action: "screenshot" })),
      message(2, result("a", { ...PICTURE, text: "A person has taken over." })),
      message(3, call("b", { action: "left_click" }), { type: "tool-call", tool_call_id: "c", tool_name: "execute", args: {} }),
      message(4, result("b", { error: "outside of the screen" })),
      message(5, call("d", { action: "zoom" })),
    ]);
    expect(found).toEqual([
      { key: "1 a", action: "Look", subject: "", url: "data:image/png;base64,iVBORw0KGgo=", note: "A person has taken over." },
      { key: "3 b", action: "Click", subject: "", url: null, note: "outside of the screen" },
      { key: "5 d", action: "Zoom", subject: "", url: null, note: "" },
    ]);
  });

  it("have no picture of another kind", () => {
    const hostile = { mime_type: "image/svg+xml", data: "PHN2Zz4=" };
    expect(actionFrames([message(1, call("a", {}), result("a", hostile))])[0]?.url).toBeNull();
  });

  it("of a parent are those of the newest subagent at a desktop", () => {
    const started = (type: string, chatId: unknown) => ({
      type: "tool-result",
      tool_call_id: "s",
      tool_name: "spawn_agent",
      result: { type, chat_id: chatId },
    });
    expect(computerAgent([message(1, started("computer_use", "x")), message(2, started("computer_use", "y"), started("general", "z"))])).toBe("y");
    expect(computerAgent([message(1, started("computer_use", 5))])).toBeNull();
  });
});
