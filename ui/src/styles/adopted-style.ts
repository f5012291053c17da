/**
 * Stands in for the style elements that libraries make at run time. The content policy allows no
 * inline style, so their rules go into a constructed style sheet instead, which the document holds
 * while the element is in it. The build puts it into those libraries: see vite.config.ts.
 */
class AdoptedStyle extends HTMLElement {
  private readonly sheet = new CSSStyleSheet();

  override get textContent(): string {
    return [...this.sheet.cssRules].map((rule) => rule.cssText).join("\n");
  }

  override set textContent(rules: string | null) {
    this.sheet.replaceSync(rules ?? "");
  }

  /** A text node is all that is ever put into a style element. */
  override appendChild<T extends Node>(node: T): T {
    this.textContent += node.textContent ?? "";
    return node;
  }

  connectedCallback(): void {
    this.hidden = true;
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, this.sheet];
  }

  disconnectedCallback(): void {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((sheet) => sheet !== this.sheet);
  }
}

const NAME = "adopted-style";

export function createAdoptedStyle(): HTMLElement {
  if (customElements.get(NAME) === undefined) customElements.define(NAME, AdoptedStyle);
  return document.createElement(NAME);
}
