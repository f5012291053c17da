/** Waits of tests. The libraries give up after one second, which a busy machine can take for one render. */
import { configure } from "@testing-library/react";
import { vi } from "vitest";
import { loadPopups } from "./src/components/menu";

// Tests press buttons at once.
await loadPopups();

const longestWaitMs = 20_000;

configure({ asyncUtilTimeout: longestWaitMs });

const waitFor = vi.waitFor.bind(vi);
vi.waitFor = (condition, options) => waitFor(condition, options ?? { timeout: longestWaitMs });
