/** A formula, drawn by KaTeX once that is loaded; its source until then, while it is being written, and if it has a mistake. */
import { useCallback, useEffect, useState } from "react";
import type { MathToken } from "./notation";

type Draw = typeof import("./katex").draw;

let known: Draw | null = null;

/** Only messages with formulas need it. */
async function loadFormulas(): Promise<Draw> {
  return (known ??= (await import("./katex")).draw);
}

export function Formula({ token }: { readonly token: MathToken }) {
  const [draw, setDraw] = useState<Draw | null>(() => known);
  const { text, isDisplay, isOpen } = token;
  useEffect(() => {
    if (draw !== null || isOpen) return;
    let isCurrent = true;
    void loadFormulas().then(
      (loaded) => isCurrent && setDraw(() => loaded),
      () => undefined,
    );
    return () => {
      isCurrent = false;
    };
  }, [draw, isOpen]);
  const raw = token.raw.trim();
  // The same while nothing of the formula changes: else React would have it drawn again with every piece of text after it.
  const place = useCallback(
    (element: HTMLElement | null) => {
      if (element !== null && draw !== null && !draw(element, text, isDisplay)) element.textContent = raw;
    },
    [draw, text, isDisplay, raw],
  );
  const source = <code className={isDisplay ? "markdown-math-source is-display" : "markdown-math-source"}>{isOpen ? text : raw}</code>;
  if (isOpen || draw === null) return source;
  const shown = <span key={text} ref={place} />;
  if (!isDisplay) return shown;
  return (
    <span className="markdown-math" role="group" aria-label="Formula" tabIndex={0}>
      {shown}
    </span>
  );
}
