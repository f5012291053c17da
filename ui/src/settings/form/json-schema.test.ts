import { describe, expect, it } from "vitest";
import { fieldsOf, type JsonSchema, labelOf, withoutDefaults } from "./json-schema";

const definitions: Record<string, JsonSchema> = {
  Thinking: { type: "object", properties: { budget_tokens: { type: "integer", minimum: 1024 } } },
  Options: {
    type: "object",
    properties: {
      send_reasoning: { type: "boolean", default: true, description: "Send it back" },
      effort: { anyOf: [{ enum: ["max", "low", "high"] }, { type: "null" }], default: null },
      domains: { type: "array", items: { type: "string" }, default: [] },
      thinking: { anyOf: [{ $ref: "#/$defs/Thinking" }, { type: "null" }], default: null, description: "Budget" },
      extra: { type: "object", additionalProperties: {}, default: {} },
      mixed: { anyOf: [{ type: "string" }, { type: "integer" }] },
    },
  },
};
const fields = fieldsOf({ $ref: "#/$defs/Options" }, definitions);
const field = (name: string) => fields.find((one) => one.name === name);

describe("a form made from a schema", () => {
  it("has a field for each property, by its kind", () => {
    expect(fields.map((one) => [one.name, one.kind])).toEqual([
      ["send_reasoning", "boolean"],
      ["effort", "choice"],
      ["domains", "list"],
      ["thinking", "group"],
      ["extra", "json"],
      ["mixed", "json"],
    ]);
  });

  it("lists efforts from little to much", () => expect(field("effort")?.choices).toEqual(["low", "high", "max"]));

  it("reads through references and keeps the outer description", () => {
    expect(field("thinking")?.description).toBe("Budget");
    expect(field("thinking")?.fields[0]?.minimum).toBe(1024);
  });

  it("knows what may be left to the provider", () => {
    expect(field("effort")?.nullable).toBe(true);
    expect(field("send_reasoning")?.nullable).toBe(false);
  });

  it("sends only what differs from the defaults, and what it does not know", () => {
    const values = { send_reasoning: true, effort: "low", domains: [], thinking: null, later: 1 };
    expect(withoutDefaults(values, fields)).toEqual({ effort: "low", later: 1 });
  });

  it("makes labels of names", () => expect(labelOf("web_search_enabled")).toBe("Web search enabled"));
});
