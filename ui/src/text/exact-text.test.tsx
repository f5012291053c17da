import { expect, test } from "vitest";
import { exactPieces } from "./exact-text";

const shown = (text: string) =>
  exactPieces(text)
    .map((piece) => (piece.isHidden ? `[${piece.text}]` : piece.text))
    .join("");

test("what the eye cannot see becomes its code point", () => {
  expect(shown("a\u202eb\u200bc")).toBe("a[U+202E]b[U+200B]c");
  expect(shown("hi\u{e0041}\u{e0042}")).toBe("hi[U+E0041][U+E0042]");
  expect(shown("a\u0007b\u00a0c\ufe01\u{e0100}")).toBe("a[U+0007]b[U+00A0]c[U+FE01][U+E0100]");
  expect(shown("a\u180bb\u180fc\u3164\u{1d159}")).toBe("a[U+180B]b[U+180F]c[U+3164][U+1D159]");
  expect(shown("a\ud800b"), "half of a pair").toBe("a[U+D800]b");
});

test("all other text stays as it is", () => {
  const text = "**I** use <b>tabs</b>.\n\u0645\u06cc \u{1f600} \u2764\ufe0f `x`";
  expect(shown(text)).toBe(text);
  expect(exactPieces("")).toEqual([]);
});
