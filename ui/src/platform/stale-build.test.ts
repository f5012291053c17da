import { afterEach, expect, test, vi } from "vitest";
import { isReloading, reloadWhenStale } from "./stale-build";

const miss = (): boolean => window.dispatchEvent(new Event("vite:preloadError"));

afterEach(() => sessionStorage.clear());

test("a part that is gone loads the page again, but not twice in a minute", () => {
  vi.useFakeTimers({ now: 1_000_000 });
  const reload = vi.fn();
  reloadWhenStale(reload);
  expect(isReloading()).toBe(false);
  miss();
  expect(isReloading(), "what fails until then is not shown").toBe(true);
  expect(reload).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(59_000);
  miss();
  expect(reload).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(1_000);
  miss();
  expect(reload).toHaveBeenCalledTimes(2);
  vi.useRealTimers();
});
