import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, describe, expect, it } from "vitest";
import { fieldsOf, type JsonSchema, labelOf, withoutDefaults } from "./json-schema";
import { SchemaForm, type Values } from "./schema-form";

afterEach(cleanup);

const SCHEMA: JsonSchema = {
  type: "object",
  properties: {
    store: { type: "boolean", default: false },
    stop: { type: "array", items: { type: "string" }, default: [] },
    extra: { type: "object", additionalProperties: true, default: {} },
    thinking: { anyOf: [{ type: "object", properties: { budget: { type: "integer" }, mode: { type: "string" } } }, { type: "null" }], default: null },
  },
};

function show(errors: Record<string, string>, values: Values = { thinking: {} }) {
  render(<SchemaForm fields={fieldsOf(SCHEMA, {})} values={values} errors={new Map(Object.entries(errors))} prefix="options." onChange={() => undefined} />);
}

const described = (control: HTMLElement): string => document.getElementById(control.getAttribute("aria-describedby") ?? "")?.textContent ?? "";

it.each([
  ["a field of a group", "options.thinking.budget", "Budget"],
  ["a yes or no", "options.store", "Store"],
  ["an item of a list", "options.stop[2]", "Stop"],
  ["a value within JSON", "options.extra.deep.key", "Extra"],
])("what is wrong with %s is said at it", (_, field, label) => {
  show({ [field]: "must be better" });
  const control = screen.getByLabelText(label);
  expect(control.getAttribute("aria-invalid")).toBe("true");
  expect(described(control)).toContain("must be better");
});

it("what is wrong with a group as a whole is said at its switch", () => {
  show({ "options.thinking": "needs a budget" }, {});
  expect(described(screen.getByLabelText("Set Thinking"))).toContain("needs a budget");
});

it("text that is not valid JSON yet says so, and the server's error stays said", () => {
  show({ "options.extra": "unknown key" });
  const box = screen.getByLabelText("Extra");
  fireEvent.change(box, { target: { value: "{" } });
  expect(screen.getByText("This is not valid JSON yet.")).toBeTruthy();
  expect(box.getAttribute("aria-invalid")).toBe("true");
  expect(box.getAttribute("aria-describedby")?.split(" ").length).toBe(2);
});

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
