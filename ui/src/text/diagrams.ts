/**
 * Draws Mermaid diagrams in a hidden frame, one at a time. Mermaid writes styles into the document, which the content policy of the
 * page refuses; that of the frame allows them, and no request to anywhere. What comes back is shown as an image: in it nothing runs.
 */
import type { DiagramReply, DiagramRequest } from "./diagram-frame";

export type Drawing = { readonly url: string; readonly width: number; readonly height: number } | { readonly error: string };

const ADDRESS = "/diagram.html";
const LONGEST_MS = 20_000;
const MAX_REMEMBERED = 40;
const MAX_SVG_CHARS = 1_000_000;

const remembered = new Map<string, Drawing>();
let frame: Promise<Window> | null = null;
let before: Promise<unknown> = Promise.resolve();
let lastId = 0;

export function drawDiagram(source: string, theme: string): Promise<Drawing> {
  const key = `${theme}\n${source}`;
  const known = remembered.get(key);
  if (known !== undefined) return Promise.resolve(known);
  const drawn = before.then(async () => {
    const found = await ask(source);
    if (remembered.size >= MAX_REMEMBERED) remembered.delete(remembered.keys().next().value ?? "");
    remembered.set(key, found);
    return found;
  });
  before = drawn.catch(() => undefined);
  return drawn.catch(() => ({ error: "The part of the page that draws it could not be loaded." }));
}

async function ask(source: string): Promise<Drawing> {
  frame ??= open();
  const target = await frame.catch((error: unknown) => {
    frame = null;
    throw error;
  });
  const id = (lastId += 1);
  const request: DiagramRequest = { id, source, colours: colours() };
  const reply = await answered(
    (data) => (data as DiagramReply | null)?.id === id,
    () => target.postMessage(request, window.location.origin),
  );
  return toDrawing(reply as DiagramReply);
}

function toDrawing(reply: DiagramReply): Drawing {
  if (reply.error !== undefined) return { error: reply.error };
  if (reply.svg.length > MAX_SVG_CHARS) return { error: "It is too large." };
  return { url: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(reply.svg)}`, width: reply.width, height: reply.height };
}

async function open(): Promise<Window> {
  const element = document.createElement("iframe");
  element.src = ADDRESS;
  element.className = "markdown-diagram-frame";
  element.tabIndex = -1;
  element.title = "Draws diagrams";
  element.setAttribute("aria-hidden", "true");
  try {
    await answered(
      (data) => data === "ready",
      () => document.body.append(element),
    );
  } catch (error) {
    element.remove();
    throw error;
  }
  if (element.contentWindow === null) throw new Error("the frame has gone");
  return element.contentWindow;
}

/** The first message of the frame that fits. */
function answered(fits: (data: unknown) => boolean, begin: () => void): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const take = (event: MessageEvent) => {
      if (event.origin !== window.location.origin || !fits(event.data)) return;
      done();
      resolve(event.data);
    };
    const timer = setTimeout(() => {
      done();
      reject(new Error("no answer"));
    }, LONGEST_MS);
    const done = () => {
      clearTimeout(timer);
      window.removeEventListener("message", take);
    };
    window.addEventListener("message", take);
    begin();
  });
}

const TOKENS = ["bg", "surface", "raised", "fg", "muted", "border-strong", "accent", "accent-soft", "warn-soft"] as const;

/** The colours of the theme as they are now, by the names of the tokens. */
function colours(): Record<(typeof TOKENS)[number], string> {
  const probe = document.createElement("i");
  probe.hidden = true;
  document.body.append(probe);
  try {
    const entries = TOKENS.map((name) => {
      probe.style.color = `var(--${name})`;
      return [name, getComputedStyle(probe).color];
    });
    return Object.fromEntries(entries) as Record<(typeof TOKENS)[number], string>;
  } finally {
    probe.remove();
  }
}
