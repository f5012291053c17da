import { describe, expect, test } from "vitest";
import { appendBytes, type FileContent } from "./file-content";

const bytes = new TextEncoder().encode("ä€𝄞 end");

describe("pieces of a text", () => {
  test("a character cut between two pieces is whole in the text, wherever it was cut", () => {
    for (let cut = 0; cut <= bytes.length; cut += 1) {
      const first = appendBytes(null, bytes.slice(0, cut), bytes.length, "1");
      const both = appendBytes(first, bytes.slice(cut), bytes.length, "1");
      expect(both.text).toBe("ä€𝄞 end");
      expect(both.loaded).toBe(bytes.length);
      expect(first.text).not.toContain("\ufffd");
    }
  });

  test("a character that the file itself cuts is shown as such at the end", () => {
    const cut: FileContent = appendBytes(null, bytes.slice(0, 1), 1, "1");
    expect(cut.text).toBe("\ufffd");
    expect(cut.rest.length).toBe(0);
  });
});
