/**
 * The connection to the screen of a desktop: noVNC over a WebSocket of the server. It is made again after a loss,
 * with growing delays; a refusal that lasts waits for the user.
 */
import RFB from "@novnc/novnc";
import { backoffDelay } from "@/connection/socket";

export type ScreenState =
  | { readonly name: "connecting" }
  | { readonly name: "open" }
  | { readonly name: "waiting"; readonly retryAt: number }
  | { readonly name: "refused"; readonly code: string };

const BACKOFF = { firstMs: 500, maxMs: 15_000 };
const REFUSED_CLOSE = 1008;
const ALT = 0xffe9;

export class DesktopConnection {
  #rfb: RFB | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #failures = 0;
  #isStopped = true;
  #canAct = false;
  readonly #host: HTMLElement;
  readonly #connect: () => WebSocket;
  readonly #onState: (state: ScreenState) => void;

  constructor(host: HTMLElement, connect: () => WebSocket, onState: (state: ScreenState) => void) {
    this.#host = host;
    this.#connect = connect;
    this.#onState = onState;
  }

  /** Connects, or connects again now. */
  start(): void {
    this.stop();
    this.#isStopped = false;
    this.#failures = 0;
    this.#open();
  }

  stop(): void {
    this.#isStopped = true;
    clearTimeout(this.#timer);
    this.#rfb?.disconnect();
    this.#rfb = null;
  }

  /** Whether mouse and keyboard of the user go to the desktop. */
  setCanAct(canAct: boolean): void {
    this.#canAct = canAct;
    if (this.#rfb === null) return;
    this.#rfb.viewOnly = !canAct;
    this.#describe();
    if (canAct) this.#rfb.focus();
  }

  /** The user leaves the screen by a key with Alt: the desktop would hold it as pressed. */
  releaseAlt(): void {
    this.#rfb?.sendKey(ALT, "AltLeft", false);
  }

  #open(): void {
    this.#onState({ name: "connecting" });
    const socket = this.#connect();
    socket.addEventListener("close", (event) => this.#onClose(rfb, event));
    const rfb = new RFB(this.#host, socket);
    this.#rfb = rfb;
    rfb.scaleViewport = true;
    rfb.background = "transparent";
    rfb.viewOnly = !this.#canAct;
    this.#describe();
    rfb.addEventListener("connect", () => {
      this.#failures = 0;
      this.#onState({ name: "open" });
      if (this.#canAct) rfb.focus();
    });
  }

  /** The picture for those who do not see it; with the keyboard it is a place of its own. */
  #describe(): void {
    const canvas = this.#host.querySelector("canvas");
    canvas?.setAttribute("role", this.#canAct ? "application" : "img");
    canvas?.setAttribute("aria-label", this.#canAct ? "Desktop, your keys go there. Alt and Arrow up leave it." : "Desktop of the workspace, view only");
    canvas?.setAttribute("tabindex", this.#canAct ? "0" : "-1");
  }

  #onClose(rfb: RFB, { code, reason }: CloseEvent): void {
    if (this.#rfb !== rfb || this.#isStopped) return;
    this.#rfb = null;
    if (code === REFUSED_CLOSE) {
      this.#onState({ name: "refused", code: reason });
      return;
    }
    const delay = backoffDelay(this.#failures, BACKOFF);
    this.#failures += 1;
    this.#onState({ name: "waiting", retryAt: Date.now() + delay });
    this.#timer = setTimeout(() => this.#open(), delay);
  }
}
