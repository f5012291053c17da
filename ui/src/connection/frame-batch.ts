/**
 * Runs a task with an animation frame, at most thirty times a second: that is smooth for text, and costs
 * half of sixty. By a timer while the page is hidden and has no frames.
 */
const HIDDEN_MS = 250;
const MIN_MS = 33;

export class FrameBatch {
  readonly #task: () => void;
  #frame: number | null = null;
  #pause: ReturnType<typeof setTimeout> | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #flushedAt = Number.NEGATIVE_INFINITY;

  constructor(task: () => void) {
    this.#task = task;
  }

  request(): void {
    if (this.#timer !== undefined) return;
    // The timer also serves a visible window that another one covers, which may get no frames.
    this.#timer = setTimeout(() => this.flush(), HIDDEN_MS);
    if (document.visibilityState !== "visible") return;
    const pauseMs = this.#flushedAt + MIN_MS - performance.now();
    // A frame that only waits for the next one would be drawn for nothing.
    if (pauseMs > 0) this.#pause = setTimeout(() => this.#requestFrame(), pauseMs);
    else this.#requestFrame();
  }

  flush(): void {
    if (this.#timer === undefined) return;
    this.cancel();
    this.#flushedAt = performance.now();
    this.#task();
  }

  cancel(): void {
    clearTimeout(this.#timer);
    clearTimeout(this.#pause);
    this.#timer = undefined;
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    this.#frame = null;
  }

  #requestFrame(): void {
    this.#frame = requestAnimationFrame(() => this.flush());
  }
}
