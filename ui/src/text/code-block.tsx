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
    <figure className="code">
      <figcaption>
        <span className="grow">{name === "" ? "text" : name}</span>
        <button
          type="button"
          className={isWrapped ? "ib sm on" : "ib sm"}
          aria-label="Wrap lines"
          aria-pressed={isWrapped}
          onClick={() => setWrapped(!isWrapped)}
        >
          <WrapText className="i sm" aria-hidden />
        </button>
        <button type="button" className="ib sm" aria-label={isCopied ? "Copied" : "Copy code"} onClick={() => copy(text)}>
          {isCopied ? <Check className="i sm ok" aria-hidden /> : <Copy className="i sm" aria-hidden />}
        </button>
      </figcaption>
      <pre className={isWrapped ? "wrap" : undefined} tabIndex={0} aria-label={name === "" ? "Code" : `Code, ${name}`}>
        <code>{nodes ?? <LongText text={text} />}</code>
        {isLive && <span className="caret" aria-hidden="true" />}
      </pre>
    </figure>
  );
}
