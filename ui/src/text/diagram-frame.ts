/** The script of diagram.html, the frame in which Mermaid draws: see diagrams.ts. */
import mermaid from "mermaid";

export interface DiagramRequest {
  readonly id: number;
  readonly source: string;
  readonly colours: Readonly<Record<string, string>>;
}

export interface DiagramReply {
  readonly id: number;
  readonly svg: string;
  readonly width: number;
  readonly height: number;
  readonly error?: string;
}

/** The same for measuring and drawing: an image has no fonts of the page. */
const FONT = "ui-sans-serif, system-ui, sans-serif";

function configure(colours: Readonly<Record<string, string>>): void {
  const { bg, surface, raised, fg, muted, accent } = colours;
  mermaid.initialize({
    startOnLoad: false,
    securityLevel: "strict",
    suppressErrorRendering: true,
    htmlLabels: false,
    fontFamily: FONT,
    theme: "base",
    themeVariables: {
      darkMode: isDark(bg ?? ""),
      background: bg,
      fontFamily: FONT,
      fontSize: "14px",
      primaryColor: colours["accent-soft"],
      primaryTextColor: fg,
      primaryBorderColor: accent,
      secondaryColor: raised,
      tertiaryColor: surface,
      lineColor: muted,
      textColor: fg,
      titleColor: fg,
      mainBkg: colours["accent-soft"],
      nodeBorder: accent,
      clusterBkg: raised,
      clusterBorder: colours["border-strong"],
      edgeLabelBackground: surface,
      noteBkgColor: colours["warn-soft"],
      noteTextColor: fg,
      noteBorderColor: colours["border-strong"],
      actorBkg: colours["accent-soft"],
      actorBorder: accent,
      actorTextColor: fg,
      signalColor: fg,
      signalTextColor: fg,
      labelTextColor: fg,
      loopTextColor: fg,
    },
  });
}

function isDark(colour: string): boolean {
  const [red = 255, green = 255, blue = 255] = (colour.match(/[\d.]+/g) ?? []).map(Number);
  return red + green + blue < 384;
}

async function draw({ id, source, colours }: DiagramRequest): Promise<DiagramReply> {
  const none = { id, svg: "", width: 0, height: 0 };
  try {
    configure(colours);
    const { svg } = await mermaid.render(`diagram-${id}`, source);
    const holder = document.createElement("div");
    holder.innerHTML = svg;
    const drawn = holder.querySelector("svg");
    if (drawn === null) return { ...none, error: "It is empty." };
    const box = drawn.viewBox.baseVal;
    const [width, height] = [Math.ceil(box.width), Math.ceil(box.height)];
    drawn.setAttribute("width", String(width));
    drawn.setAttribute("height", String(height));
    drawn.style.removeProperty("max-width");
    return { id, svg: new XMLSerializer().serializeToString(drawn), width, height };
  } catch (error) {
    const text = error instanceof Error ? error.message : "It has a mistake.";
    return { ...none, error: (text.split("\n")[0] ?? "").replace(/:\s*$/, ".").slice(0, 200) };
  }
}

window.addEventListener("message", (event: MessageEvent<DiagramRequest>) => {
  if (event.origin !== window.location.origin || event.source !== window.parent) return;
  void draw(event.data).then((reply) => window.parent.postMessage(reply, window.location.origin));
});
window.parent.postMessage("ready", window.location.origin);
