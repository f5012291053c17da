import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { humanize, serverOf } from "./call-view";
import { parsePartialJson } from "./json";

describe("partial JSON", () => {
  it.each([
    ["", undefined],
    ["{", {}],
    ['{"a', {}],
    ['{"a":', {}],
    ['{"a":1', {}],
    ['{"a":1,', { a: 1 }],
    ['{"a":"x', { a: "x" }],
    ['{"a":"x\\', { a: "x" }],
    ['{"a":"x\\u00e', { a: "x" }],
    ['{"a":"x\\\\', { a: "x\\" }],
    ['{"a":["x","y', { a: ["x", "y"] }],
    ['{"a":{"b":true}', { a: { b: true } }],
    ['{"a":tr', {}],
    ["nonsense", undefined],
  ])("%s", (text, expected) => {
    const value = parsePartialJson(text);
    expect(value === undefined ? undefined : JSON.parse(JSON.stringify(value))).toEqual(expected);
  });

  it("never throws, and reads complete JSON as it is", () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.nat(), (value, cut) => {
        const text = JSON.stringify(value);
        expect(() => parsePartialJson(text.slice(0, cut % (text.length + 1)))).not.toThrow();
        expect(JSON.stringify(parsePartialJson(text))).toEqual(JSON.stringify(JSON.parse(text)));
      }),
    );
  });

  it("stops at a depth that no tool needs", () => {
    expect(() => parsePartialJson("[".repeat(100_000))).not.toThrow();
  });
});

describe("the name of a tool", () => {
  it.each([
    ["execute", "Execute", ""],
    ["github__create_issue", "Create issue", "github"],
    ["workspace__github__create_issue", "Create issue", "workspace: github"],
  ])("%s reads as %s of the server %s", (name, title, server) => {
    expect([humanize(name), serverOf(name)]).toEqual([title, server]);
  });
});
