/** KaTeX with its styles and fonts. It writes to the document itself: its HTML as text would carry styles that the content policy refuses. */
import "katex/dist/katex.css";
import katex from "katex";

/** False: the source has a mistake, and nothing was drawn. */
export function draw(element: HTMLElement, source: string, isDisplay: boolean): boolean {
  try {
    katex.render(source, element, { displayMode: isDisplay, throwOnError: true, strict: "ignore", trust: false, maxExpand: 500, maxSize: 30 });
    return true;
  } catch {
    return false;
  }
}
