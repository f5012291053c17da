/** Inline markdown as React nodes. HTML stays text. */
import { Image } from "lucide-react";
import type { MarkedToken, Token } from "marked";
import type { ReactNode } from "react";
import { decodeEntities, safeHref } from "./links";

export interface InlineOptions {
  /** Words that are added fade in. */
  readonly isLive: boolean;
}

const MAX_DEPTH = 24;

export function inline(tokens: readonly Token[] | undefined, options: InlineOptions, depth = 0): ReactNode {
  return tokens?.map((token, index) => inlineToken(token as MarkedToken, index, options, depth + 1));
}

function inlineToken(token: MarkedToken, key: number, options: InlineOptions, depth: number): ReactNode {
  if (depth > MAX_DEPTH) return token.raw;
  switch (token.type) {
    case "strong":
      return <strong key={key}>{inline(token.tokens, options, depth)}</strong>;
    case "em":
      return <em key={key}>{inline(token.tokens, options, depth)}</em>;
    case "del":
      return <del key={key}>{inline(token.tokens, options, depth)}</del>;
    case "codespan":
      return <code key={key}>{token.text}</code>;
    case "br":
      return <br key={key} />;
    case "escape":
      // Models write formulas as \\( x \\): without the backslash nothing would tell them from brackets.
      return /^\\[()[\]]$/.test(token.raw) ? token.raw : decodeEntities(token.text);
    case "link":
      return link(key, token.href, token.title, inline(token.tokens, options, depth));
    case "image":
      return image(key, token.href, token.text);
    case "checkbox":
      return null;
    case "text":
      if (token.tokens !== undefined) return inline(token.tokens, options, depth);
      return words(decodeEntities(token.text), key, options);
    default:
      return token.raw;
  }
}

function link(key: number, href: string, title: string | null | undefined, children: ReactNode): ReactNode {
  const safe = safeHref(href);
  if (safe === null) return <span key={key}>{children}</span>;
  return (
    <a key={key} className="ui-link" href={safe} title={title ?? undefined} target="_blank" rel="noreferrer noopener">
      {children}
    </a>
  );
}

/** Images of other hosts are never fetched by the page: looking at one tells its host who looks. */
function image(key: number, href: string, alt: string): ReactNode {
  const label = (
    <>
      <Image className="ui-icon is-sm" aria-hidden />
      {alt === "" ? "Image" : alt}
    </>
  );
  const safe = safeHref(href);
  if (safe === null) {
    return (
      <span key={key} className="ui-chip">
        {label}
      </span>
    );
  }
  return (
    <a key={key} className="ui-chip" href={safe} title={safe} target="_blank" rel="noreferrer noopener">
      {label}
    </a>
  );
}

function words(text: string, key: number, options: InlineOptions): ReactNode {
  if (!options.isLive) return text;
  const pieces = text.match(/\s*\S+\s*|\s+/g) ?? [];
  return pieces.map((piece, index) => (
    <span key={`${key}-${index}`} className="markdown-word">
      {piece}
    </span>
  ));
}
