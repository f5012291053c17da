import { describe, expect, it } from "vitest";
import { readAnsi } from "./ansi";

const E = "\u001b";

describe("output of a terminal", () => {
  it.each([
    ["plain", [["plain", ""]]],
    [`a ${E}[31mred${E}[0m b`, [["a ", ""], ["red", "tone-danger"], [" b", ""]]],
    [`${E}[1;32mok${E}[22m go`, [["ok", "tone-ok ui-strong"], [" go", "tone-ok"]]],
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
