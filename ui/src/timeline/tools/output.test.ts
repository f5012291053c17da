import { describe, expect, it } from "vitest";
import { endWords, findProcess } from "./command-card";
import { readAnsi } from "./output";

const E = "\u001b";

describe("output of a terminal", () => {
  it.each([
    ["plain", [["plain", ""]]],
    [
      `a ${E}[31mred${E}[0m b`,
      [
        ["a ", ""],
        ["red", "tone-danger"],
        [" b", ""],
      ],
    ],
    [
      `${E}[1;32mok${E}[22m go`,
      [
        ["ok", "tone-ok ui-strong"],
        [" go", "tone-ok"],
      ],
    ],
    [`${E}[38;5;196mx${E}[48;2;1;2;3my${E}[0m`, [["xy", ""]]],
    [`${E}[2J${E}[1;1Hhome`, [["home", ""]]],
    [`${E}]0;title\u0007text`, [["text", ""]]],
    [`${E}]8;;http://evil.test${E}\\link${E}]8;;${E}\\`, [["link", ""]]],
    ["10%\r50%\r100%\ndone\r\n", [["100%\ndone\n", ""]]],
    ["a\u0000b\u0008c\u007f", [["abc", ""]]],
    [`cut${E}`, [["cut", ""]]],
    [`cut${E}[3`, [["cut[3", ""]]],
  ])("%j", (text, expected) => {
    expect(readAnsi(text).map((piece) => [piece.text, piece.className])).toEqual(expected);
  });
});

const process = (id: string, command: string, running: boolean) => ({ id, command, running, background: true, exit_code: running ? null : 0 });

describe("the process of a command's card", () => {
  const processes = [process("p2", "npm run dev", true), process("p1", "npm run dev", false)];

  it("is found by its id, also after its end", () => {
    expect(findProcess(processes, "p1", "npm run dev")?.running).toBe(false);
    expect(findProcess(processes, "p9", "npm run dev")).toBeNull();
  });

  it("is found by its command while the call has no result, if it runs", () => {
    expect(findProcess(processes, "", "npm run dev")?.id).toBe("p2");
    expect(findProcess([process("p1", "make", false)], "", "make")).toBeNull();
    expect(findProcess(processes, "", "")).toBeNull();
  });

  it("says how it ended", () => {
    expect([-1, 0, 2].map((code) => endWords({ exit_code: code }))).toEqual([
      "The process was stopped.",
      "The process has ended.",
      "The process has ended with exit code 2.",
    ]);
  });
});
