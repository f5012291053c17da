import { expect, test } from "vitest";
import { newUuid } from "./plain-http";

test("an id is a random UUID of version 4", () => {
  const made = Array.from({ length: 100 }, newUuid);
  for (const id of made) expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  expect(new Set(made).size).toBe(100);
});
