/** Markdown of a model as React nodes. A block that has not changed is not rendered again. */
import { Image } from "lucide-react";
import type { MarkedToken, Token, Tokens } from "marked";
import { createContext, memo, type ReactNode, useContext, useId, useMemo, useState } from "react";
import { BlockReader, readBlocks } from "./blocks";
import { CodeBlock } from "./code";
import { Diagram } from "./diagram";
import { Formula } from "./formula";
import { decodeEntities, safeHref, safeImage } from "./links";
import type { FootnoteRefToken, FootnoteToken, MathToken } from "./notation";
import { WebImage } from "./web-image";

const MAX_DEPTH = 16;

interface MarkdownProps {
  readonly text: string;
  /** The text is being written: it ends with a caret, and its last block may be incomplete. */
  readonly isLive?: boolean;
  readonly className?: string;
}

export function Markdown({ text, isLive = false, className = "markdown-text" }: MarkdownProps) {
  const [reader] = useState(() => new BlockReader());
  const blocks = useMemo(() => (isLive ? reader.read(text) : readBlocks(text)), [reader, text, isLive]);
  const last = blocks.length - 1;
  const notes = blocks.flatMap((block) => (block.token.type === "footnote" ? [block.token as FootnoteToken] : []));
  const shown = (
    <div className={isLive ? `${className} is-live` : className} aria-busy={isLive || undefined}>
      {blocks.map((block, index) => (
        <BlockView key={index} raw={block.raw} token={block.token} isLive={isLive && index === last} />
      ))}
      {isLive && last < 0 && <Caret />}
      {notes.length > 0 && <FootnoteList notes={notes} />}
    </div>
  );
  // Always around it: a text that has been written is not drawn anew when it ends.
  return (
    <Footnotes notes={notes} isLive={isLive}>
      {shown}
    </Footnotes>
  );
}

// Footnotes: a number in the text, and the notes at the end of the message.

interface FootnoteNumbers {
  readonly prefix: string;
  readonly labels: readonly string[];
  /** The message is being written: a note may still come. */
  readonly isLive: boolean;
}

const FootnoteContext = createContext<FootnoteNumbers>({ prefix: "", labels: [], isLive: false });

function Footnotes({ notes, isLive, children }: { readonly notes: readonly FootnoteToken[]; readonly isLive: boolean; readonly children: ReactNode }) {
  const prefix = useId();
  const joined = notes.map((note) => note.label).join("\n");
  const numbers = useMemo(() => ({ prefix, labels: joined === "" ? [] : joined.split("\n"), isLive }), [prefix, joined, isLive]);
  return <FootnoteContext value={numbers}>{children}</FootnoteContext>;
}

function FootnoteRef({ token }: { readonly token: FootnoteRefToken }) {
  const { prefix, labels, isLive } = useContext(FootnoteContext);
  const at = labels.indexOf(token.label);
  if (at < 0) return isLive ? <sup>{token.label}</sup> : token.raw;
  return (
    <sup>
      <JumpLink to={`${prefix}note-${at}`} id={`${prefix}ref-${at}`} label={`Footnote ${at + 1}`}>
        {at + 1}
      </JumpLink>
    </sup>
  );
}

function FootnoteList({ notes }: { readonly notes: readonly FootnoteToken[] }) {
  const { prefix } = useContext(FootnoteContext);
  return (
    <ol className="markdown-notes" aria-label="Footnotes">
      {notes.map((note, index) => (
        <li key={index} id={`${prefix}note-${index}`} tabIndex={-1}>
          {inline(note.tokens, { isLive: false })}{" "}
          <JumpLink to={`${prefix}ref-${index}`} label={`Back to the text of footnote ${index + 1}`}>
            ↑
          </JumpLink>
        </li>
      ))}
    </ol>
  );
}

/** A way within the message: the address stays that of the chat. */
function JumpLink({ to, id, label, children }: { readonly to: string; readonly id?: string; readonly label: string; readonly children: ReactNode }) {
  const jump = () => {
    const target = document.getElementById(to);
    target?.scrollIntoView({ block: "nearest" });
    target?.focus({ preventScroll: true });
  };
  return (
    <button type="button" id={id} className="ui-link" aria-label={label} onClick={jump}>
      {children}
    </button>
  );
}

interface BlockViewProps {
  readonly raw: string;
  readonly token: Token;
  readonly isLive: boolean;
}

const BlockView = memo(
  function BlockView({ token, isLive }: BlockViewProps) {
    return block(token, { isLive, tail: isLive ? <Caret /> : null }, 0);
  },
  (before, after) => before.raw === after.raw && before.isLive === after.isLive,
);

function Caret() {
  return <span className="markdown-caret" aria-hidden="true" />;
}

interface BlockOptions {
  readonly isLive: boolean;
  /** Stands after the last character. */
  readonly tail: ReactNode;
}

function block(token: Token, options: BlockOptions, depth: number, key?: number): ReactNode {
  if (token.type === "math") return <Formula key={key} token={token as MathToken} />;
  if (token.type === "footnote") return null;
  const found = token as MarkedToken;
  if (depth > MAX_DEPTH) return <p key={key}>{found.raw}</p>;
  switch (found.type) {
    case "paragraph":
    case "text":
      return (
        <p key={key}>
          {found.tokens === undefined ? found.text : inline(found.tokens, options)}
          {options.tail}
        </p>
      );
    case "heading":
      return heading(found, options, key);
    case "code":
      if (found.lang === "mermaid") return <Diagram key={key} source={found.text} isLive={options.isLive} />;
      return <CodeBlock key={key} text={found.text} language={found.lang ?? ""} isLive={options.isLive} />;
    case "blockquote":
      return <blockquote key={key}>{blocks(found.tokens, options, depth)}</blockquote>;
    case "list":
      return list(found, options, depth, key);
    case "table":
      return table(found, options, key);
    case "hr":
      return <hr key={key} />;
    case "space":
    case "def":
      return null;
    default:
      return (
        <p key={key} className="markdown-raw">
          {found.raw.trimEnd()}
          {options.tail}
        </p>
      );
  }
}

function blocks(tokens: readonly Token[], options: BlockOptions, depth: number): ReactNode {
  const shown = tokens.filter((token) => token.type !== "space");
  return shown.map((token, index) => {
    const isLast = index === shown.length - 1;
    return block(token, isLast ? options : { isLive: false, tail: null }, depth + 1, index);
  });
}

/** Headings of a message are below those of the page. */
function heading(token: Tokens.Heading, options: BlockOptions, key?: number): ReactNode {
  const Tag = token.depth <= 2 ? "h3" : token.depth === 3 ? "h4" : "h5";
  return (
    <Tag key={key} className={`markdown-h${Math.min(token.depth, 4)}`}>
      {inline(token.tokens, options)}
      {options.tail}
    </Tag>
  );
}

function list(token: Tokens.List, options: BlockOptions, depth: number, key?: number): ReactNode {
  const items = token.items.map((item, index) => {
    const isLast = index === token.items.length - 1;
    return listItem(item, isLast ? options : { isLive: false, tail: null }, depth, index);
  });
  if (!token.ordered) return <ul key={key}>{items}</ul>;
  return (
    <ol key={key} start={token.start === "" || token.start === 1 ? undefined : token.start}>
      {items}
    </ol>
  );
}

function listItem(item: Tokens.ListItem, options: BlockOptions, depth: number, key: number): ReactNode {
  const tokens = item.tokens.filter((token) => token.type !== "space" && token.type !== "checkbox");
  const content = tokens.map((token, index) => {
    const isLast = index === tokens.length - 1;
    const own = isLast ? options : { isLive: false, tail: null };
    if (token.type !== "text" || item.loose) return block(token, own, depth + 1, index);
    return (
      <span key={index}>
        {token.tokens === undefined ? token.raw : inline(token.tokens, own)}
        {own.tail}
      </span>
    );
  });
  return (
    <li key={key} className={item.task ? "markdown-task" : undefined}>
      {item.task && <input type="checkbox" checked={item.checked === true} readOnly disabled aria-label={taskLabel(item)} />}
      {content.length === 0 ? options.tail : content}
    </li>
  );
}

function taskLabel(item: Tokens.ListItem): string {
  return item.checked === true ? "Done" : "To do";
}

function table(token: Tokens.Table, options: BlockOptions, key?: number): ReactNode {
  return (
    <div key={key} className="markdown-table" role="group" aria-label="Table" tabIndex={0}>
      <table>
        <thead>
          <tr>
            {token.header.map((cell, index) => (
              <th key={index} scope="col" data-align={cell.align ?? undefined}>
                {inline(cell.tokens, { isLive: false })}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row, index) => (
            <tr key={index}>
              {row.map((cell, column) => (
                <td key={column} data-align={cell.align ?? undefined}>
                  {inline(cell.tokens, { isLive: false })}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {options.tail}
    </div>
  );
}

// Inline markdown as React nodes. HTML stays text.

interface InlineOptions {
  /** Words that are added fade in. */
  readonly isLive: boolean;
  readonly isInLink?: boolean;
}

const MAX_INLINE_DEPTH = 24;

function inline(tokens: readonly Token[] | undefined, options: InlineOptions, depth = 0): ReactNode {
  return tokens?.map((token, index) => {
    if (token.type === "math") return <Formula key={`${index} ${token.raw}`} token={token as MathToken} />;
    if (token.type === "footnote-ref") return <FootnoteRef key={index} token={token as FootnoteRefToken} />;
    return inlineToken(token as MarkedToken, index, options, depth + 1);
  });
}

function inlineToken(token: MarkedToken, key: number, options: InlineOptions, depth: number): ReactNode {
  if (depth > MAX_INLINE_DEPTH) return token.raw;
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
      return link(key, token.href, token.title, inline(token.tokens, { ...options, isInLink: true }, depth));
    case "image":
      return image(key, token.href, token.text, options.isInLink === true);
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

/** Images of other hosts are fetched by no text: see `WebImage`. In a link they are its words. */
function image(key: number, href: string, alt: string, isInLink: boolean): ReactNode {
  const own = safeImage(href);
  if (own !== null) return <img key={key} className="markdown-image" src={own} alt={alt} />;
  const safe = safeHref(href);
  if (!isInLink && safe?.startsWith("http") === true) return <WebImage key={`${key} ${safe}`} url={safe} alt={alt} />;
  return (
    <span key={key} className={isInLink ? undefined : "ui-chip"}>
      <Image className="ui-icon is-sm" aria-hidden />
      {alt === "" ? "Image" : alt}
    </span>
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
