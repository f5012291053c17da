import { cleanup, render, screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { lazy, Suspense } from "react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { ErrorBoundary } from "./error";

// React tells of each error that a boundary takes.
beforeEach(() => void vi.spyOn(console, "error").mockImplementation(() => undefined));
afterEach(cleanup);

function Fragile({ isBroken }: { isBroken: boolean }) {
  if (isBroken) throw new Error("no such field");
  return <p>Well</p>;
}

it("a part that throws says what is missing, and what is beside it stays", () => {
  render(
    <>
      <p>Beside</p>
      <ErrorBoundary what="The list cannot be shown.">
        <Fragile isBroken />
      </ErrorBoundary>
    </>,
  );
  expect(screen.getByText("Beside")).toBeTruthy();
  expect(screen.getByRole("alert").textContent).toContain("The list cannot be shown.no such field");
});

it("a part that is well again is shown after a press", async () => {
  let isBroken = true;
  const Part = () => <Fragile isBroken={isBroken} />;
  render(
    <ErrorBoundary what="x">
      <Part />
    </ErrorBoundary>,
  );
  isBroken = false;
  await userEvent.click(screen.getByRole("button", { name: "Try again" }));
  expect(screen.getByText("Well")).toBeTruthy();
});

it("another key tries the part again", () => {
  const { rerender } = render(
    <ErrorBoundary what="x" resetKey="one">
      <Fragile isBroken />
    </ErrorBoundary>,
  );
  rerender(
    <ErrorBoundary what="x" resetKey="two">
      <Fragile isBroken={false} />
    </ErrorBoundary>,
  );
  expect(screen.getByText("Well")).toBeTruthy();
});

it("a part that cannot be loaded offers to reload the page", async () => {
  const Missing = lazy(() => Promise.reject(new TypeError("Failed to fetch dynamically imported module: /assets/x.js")));
  render(
    <ErrorBoundary what="The panel cannot be shown.">
      <Suspense>
        <Missing />
      </Suspense>
    </ErrorBoundary>,
  );
  await waitFor(() => expect(screen.getByRole("button", { name: "Reload the page" })).toBeTruthy());
});
