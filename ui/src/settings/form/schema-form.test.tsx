import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, it } from "vitest";
import { fieldsOf, type JsonSchema } from "./json-schema";
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
