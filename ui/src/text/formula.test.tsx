import { cleanup, render, screen } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";

// Files share their modules: this one has its own, and leaves none.
afterEach(() => {
  cleanup();
  vi.doUnmock("./katex");
  vi.resetModules();
});

it("does not draw a formula again while text after it is being written", async () => {
  const draw = vi.fn((element: HTMLElement, source: string) => {
    element.textContent = `drawn ${source}`;
    return true;
  });
  vi.resetModules();
  vi.doMock("./katex", () => ({ draw }));
  const { Markdown } = await import("./markdown");
  const { rerender } = render(<Markdown text={"So $x^2$ and"} isLive />);
  await screen.findByText("drawn x^2");
  const before = draw.mock.calls.length;
  rerender(<Markdown text={"So $x^2$ and more"} isLive />);
  expect(document.body.textContent).toContain("drawn x^2 and more");
  expect(draw.mock.calls.length).toBe(before);
});
