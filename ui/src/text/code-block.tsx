/** A block of code: language, copy, wrapped lines by choice, colours when they are there. */
import { Check, Copy, WrapText } from "lucide-react";
import { useState } from "react";
import { useCopy } from "./copy";
import { LongText } from "./long-text";
import { useHighlighted } from "./use-highlighted";

export interface CodeBlockProps {
  readonly text: string;
  readonly language: string;
  readonly isLive?: boolean;
}

export function CodeBlock({ text, language, isLive = false }: CodeBlockProps) {
  const [isWrapped, setWrapped] = useState(false);
  const [isCopied, copy] = useCopy();
  const name = /^[\w+#.-]{1,24}/.exec(language)?.[0] ?? "";
  const nodes = useHighlighted(text, name, isLive);
  return (
    <figure className="markdown-code">
      <figcaption>
        <span className="ui-grow">{name === "" ? "text" : name}</span>
        <button
          type="button"
          className={isWrapped ? "ui-icon-button is-sm is-on" : "ui-icon-button is-sm"}
          aria-label="Wrap lines"
          aria-pressed={isWrapped}
          onClick={() => setWrapped(!isWrapped)}
        >
          <WrapText className="ui-icon is-sm" aria-hidden />
        </button>
        <button type="button" className="ui-icon-button is-sm" aria-label={isCopied ? "Copied" : "Copy code"} onClick={() => copy(text)}>
          {isCopied ? <Check className="ui-icon is-sm tone-ok" aria-hidden /> : <Copy className="ui-icon is-sm" aria-hidden />}
        </button>
      </figcaption>
      <pre className={isWrapped ? "is-wrapped" : undefined} tabIndex={0} aria-label={name === "" ? "Code" : `Code, ${name}`}>
        <code>{nodes ?? <LongText text={text} />}</code>
        {isLive && <span className="markdown-caret" aria-hidden="true" />}
      </pre>
    </figure>
  );
}
