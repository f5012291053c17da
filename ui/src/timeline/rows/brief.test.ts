import { describe, expect, it } from "vitest";
import { humanize, serverOf } from "./brief";

describe("the name of a tool", () => {
  it.each([
    ["execute", "Execute", ""],
    ["github__create_issue", "Create issue", "github"],
    ["workspace__github__create_issue", "Create issue", "workspace: github"],
  ])("%s reads as %s of the server %s", (name, title, server) => {
    expect([humanize(name), serverOf(name)]).toEqual([title, server]);
  });
});
