import fc from "fast-check";
import { expect, test } from "vitest";
import { PartialJsonReader } from "./partial-json";

/** Reads `text` in pieces that end at `cuts`. */
function readInPieces(text: string, cuts: readonly number[]) {
  const reader = new PartialJsonReader();
  const ends = [...cuts.map((cut) => cut % (text.length + 1)), text.length].sort((a, b) => a - b);
  return ends.map((end) => reader.read(text.slice(0, end))).at(-1);
}

const cuts = fc.array(fc.nat(), { maxLength: 12 });
const spacing = fc.constantFrom(undefined, 1, "\t");

test("whole JSON in any pieces gives what JSON.parse gives", () => {
  fc.assert(
    fc.property(fc.jsonValue(), spacing, cuts, (value, space, at) => {
      const text = JSON.stringify(value, null, space);
      const read = readInPieces(text, at);
      const isOpenNumber = typeof value === "number";
      expect(read).toEqual({ value: JSON.parse(text) as unknown, isComplete: !isOpenNumber && typeof value !== "boolean" && value !== null, isValid: true });
    }),
  );
});

test("any beginning of JSON is valid, and gives the same in one piece or in many", () => {
  fc.assert(
    fc.property(fc.jsonValue(), fc.nat(), cuts, (value, length, at) => {
      const text = JSON.stringify(value);
      const beginning = text.slice(0, length % (text.length + 1));
      const whole = new PartialJsonReader().read(beginning);
      expect(whole.isValid).toBe(true);
      expect(readInPieces(beginning, at)).toEqual(whole);
    }),
  );
});

test("any text at all is read without an error, and whole JSON is never called invalid", () => {
  fc.assert(
    fc.property(fc.string({ unit: fc.constantFrom(...Array.from('{}[]",:\\u0ab1-.eE+ truefalsn')) }), cuts, (text, at) => {
      const read = readInPieces(text, at);
      let isJson = true;
      try {
        JSON.parse(text);
      } catch {
        isJson = false;
      }
      if (isJson) expect(read?.isValid).toBe(true);
      else expect(read?.isComplete).toBe(false);
    }),
  );
});

test("a string grows while it is written", () => {
  const reader = new PartialJsonReader();
  expect(reader.read('{"comm')).toMatchObject({ value: {}, isComplete: false });
  expect(reader.read('{"command": "py')).toMatchObject({ value: { command: "py" } });
  expect(reader.read('{"command": "pytest\\')).toMatchObject({ value: { command: "pytest" } });
  expect(reader.read('{"command": "pytest\\n-q", "n": 1')).toMatchObject({ value: { command: "pytest\n-q" } });
  expect(reader.read('{"command": "pytest\\n-q", "n": 12}')).toEqual({
    value: { command: "pytest\n-q", n: 12 },
    isComplete: true,
    isValid: true,
  });
});

test("a key named __proto__ is an ordinary key", () => {
  const { value } = new PartialJsonReader().read('{"__proto__": {"x": 1}}');
  expect(Object.keys(value as object)).toEqual(["__proto__"]);
  expect(({} as Record<string, unknown>).x).toBeUndefined();
});

test("complete values keep their reference, open ones change it", () => {
  const reader = new PartialJsonReader();
  const first = reader.read('{"edits": [{"path": "a"}, {"path": "b').value as { edits: object[] };
  const second = reader.read('{"edits": [{"path": "a"}, {"path": "bc').value as { edits: object[] };
  expect(second.edits[0]).toBe(first.edits[0]);
  expect(second.edits[1]).not.toBe(first.edits[1]);
  expect(first.edits[1]).toEqual({ path: "b" });
});

test("text that cannot become JSON keeps what was read", () => {
  const reader = new PartialJsonReader();
  expect(reader.read('{"a": 1, oops')).toEqual({ value: { a: 1 }, isComplete: false, isValid: false });
});
