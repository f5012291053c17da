/** The part of noVNC that the page uses; the package has no types of its own. */
declare module "@novnc/novnc" {
  export default class RFB extends EventTarget {
    constructor(target: Element, channel: WebSocket, options?: { shared?: boolean });
    viewOnly: boolean;
    scaleViewport: boolean;
    background: string;
    showDotCursor: boolean;
    disconnect(): void;
    focus(options?: FocusOptions): void;
    sendKey(keysym: number, code: string | null, down?: boolean): void;
  }
}
