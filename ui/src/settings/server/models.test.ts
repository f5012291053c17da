import { describe, expect, it } from "vitest";
import type { Model } from "@/api/models";

import { contextText } from "./models";

describe("the context window of a model", () => {
  it.each([
    [{}, ""],
    [{ capabilities: { context_limit: 64_000 } }, "64k"],
    [{ capabilities: { context_limit: 8_000 }, learned_context: { tokens: 8_000, is_bound: false } }, "8k (learned)"],
    [{ learned_context: { tokens: 9_000, is_bound: true } }, "< 9k (learned)"],
    [{ context_limit: 4_000, capabilities: { context_limit: 64_000 } }, "4k"],
  ])("of %j is shown as %j", (fields: Partial<Model>, text) => {
    expect(contextText({ capabilities: {}, ...fields } as Model)).toBe(text);
  });
});
