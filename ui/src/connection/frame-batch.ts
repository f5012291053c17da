/** Runs a task once per animation frame; by a timer while the page is hidden and has no frames. */
const HIDDEN_MS = 250;

export class FrameBatch {
  readonly #task: () => void;
  #frame: number | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(task: () => void) {
    this.#task = task;
  }

  request(): void {
    if (this.#timer !== undefined) return;
    // The timer also serves a visible window that another one covers, which may get no frames.
    this.#timer = setTimeout(() => this.flush(), HIDDEN_MS);
    if (document.visibilityState === "visible") this.#frame = requestAnimationFrame(() => this.flush());
  }

  flush(): void {
    if (this.#timer === undefined) return;
    this.cancel();
    this.#task();
  }

  cancel(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    this.#frame = null;
  }
}
