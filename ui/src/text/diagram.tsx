/** A Mermaid diagram in place of its source, which is a press away. With a mistake, or while it is being written, it is its source. */
import { Check, Code, Copy, Workflow } from "lucide-react";
import { useEffect, useState } from "react";
import { usePreference } from "@/platform/preferences";
import { CodeBlock, useCopy } from "./code";
import type { Drawing } from "./diagrams";

const MAX_CHARS = 20_000;

export function Diagram({ source, isLive }: { readonly source: string; readonly isLive: boolean }) {
  const [isSource, setSource] = useState(false);
  const [isCopied, copy] = useCopy();
  const drawing = useDrawing(isLive || source.length > MAX_CHARS ? null : source);
  if (drawing === null || "error" in drawing) {
    return (
      <>
        <CodeBlock text={source} language="mermaid" isLive={isLive} />
        {drawing !== null && <p className="markdown-mistake">This diagram cannot be drawn. {drawing.error}</p>}
      </>
    );
  }
  return (
    <figure className="markdown-code">
      <figcaption>
        <span className="ui-grow">mermaid</span>
        <button
          type="button"
          className="ui-icon-button is-sm"
          aria-label={isSource ? "Show the diagram" : "Show the source"}
          onClick={() => setSource(!isSource)}
        >
          {isSource ? <Workflow className="ui-icon is-sm" aria-hidden /> : <Code className="ui-icon is-sm" aria-hidden />}
        </button>
        <button type="button" className="ui-icon-button is-sm" aria-label={isCopied ? "Copied" : "Copy code"} onClick={() => copy(source)}>
          {isCopied ? <Check className="ui-icon is-sm tone-ok" aria-hidden /> : <Copy className="ui-icon is-sm" aria-hidden />}
        </button>
      </figcaption>
      {isSource ? (
        <pre tabIndex={0} aria-label="Code, mermaid">
          <code>{source}</code>
        </pre>
      ) : (
        <div className="markdown-diagram" role="group" aria-label="Diagram" tabIndex={0}>
          <img src={drawing.url} width={drawing.width} height={drawing.height} alt={source.trim()} />
        </div>
      )}
    </figure>
  );
}

/** Drawn again in the colours of another theme. Null: not yet, or `source` is null. */
function useDrawing(source: string | null): Drawing | null {
  const [theme] = usePreference("theme");
  const [isSystemDark, setSystemDark] = useState(() => window.matchMedia("(prefers-color-scheme: dark)").matches);
  const [drawing, setDrawing] = useState<Drawing | null>(null);
  useEffect(() => {
    const list = window.matchMedia("(prefers-color-scheme: dark)");
    const follow = () => setSystemDark(list.matches);
    list.addEventListener("change", follow);
    return () => list.removeEventListener("change", follow);
  }, []);
  useEffect(() => {
    if (source === null) return;
    let isCurrent = true;
    const show = (found: Drawing) => {
      if (isCurrent) setDrawing(found);
    };
    void import("./diagrams").then(
      async ({ drawDiagram }) => show(await drawDiagram(source, `${theme} ${isSystemDark}`)),
      () => undefined,
    );
    return () => {
      isCurrent = false;
    };
  }, [source, theme, isSystemDark]);
  return source === null ? null : drawing;
}
