/** JSON of any size as a tree that opens by steps; texts are cut until asked for. */
import { Check, ChevronRight, Copy } from "lucide-react";
import { type ReactNode, useState } from "react";
import { classes, Icon } from "@/components";
import { plural } from "@/platform/words";
import { useCopy } from "@/text/code";

const STEP = 100;
const MAX_TEXT = 400;
const OPEN_DEPTH = 1;
const MAX_DEPTH = 60;

interface JsonTreeProps {
  readonly label: string;
  readonly value: unknown;
}

export function JsonTree({ label, value }: JsonTreeProps) {
  const [isCopied, copy] = useCopy();
  return (
    <section className="debug-json" aria-label={label}>
      <header>
        <b className="ui-grow">{label}</b>
        <button type="button" className="ui-button is-xs is-quiet" onClick={() => copy(JSON.stringify(value, null, 2))}>
          <Icon of={isCopied ? Check : Copy} size="sm" />
          {isCopied ? "Copied" : "Copy"}
        </button>
      </header>
      <div className="debug-json-body" tabIndex={0} role="group" aria-label={`${label} as JSON`}>
        <JsonNode name={null} value={value} depth={0} />
      </div>
    </section>
  );
}

function JsonNode({ name, value, depth }: { name: string | null; value: unknown; depth: number }) {
  if (typeof value !== "object" || value === null) {
    return (
      <div className="debug-json-row">
        <Name name={name} />
        <Scalar value={value} />
      </div>
    );
  }
  const entries: readonly (readonly [string, unknown])[] = Array.isArray(value)
    ? value.map((item, index) => [String(index), item as unknown] as const)
    : Object.entries(value);
  return <Branch name={name} entries={entries} isList={Array.isArray(value)} depth={depth} />;
}

interface BranchProps {
  readonly name: string | null;
  readonly entries: readonly (readonly [string, unknown])[];
  readonly isList: boolean;
  readonly depth: number;
}

function Branch({ name, entries, isList, depth }: BranchProps) {
  const [isOpen, setOpen] = useState(depth < OPEN_DEPTH);
  const [most, setMost] = useState(STEP);
  const [open, close] = isList ? ["[", "]"] : ["{", "}"];
  const size = plural(entries.length, isList ? "item" : "field");
  if (entries.length === 0 || depth > MAX_DEPTH) {
    return (
      <div className="debug-json-row">
        <Name name={name} />
        <span className="tone-subtle">{entries.length === 0 ? `${open}${close}` : `${open} too deep to show ${close}`}</span>
      </div>
    );
  }
  return (
    <div>
      <button type="button" className="debug-json-row debug-json-fold" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <Icon of={ChevronRight} size="sm" className={classes("ui-chevron", isOpen && "is-open")} />
        <Name name={name} />
        <span className="tone-subtle">
          {open} {size}
          {!isOpen && ` ${close}`}
          {!isOpen && preview(entries)}
        </span>
      </button>
      {isOpen && (
        <div className="debug-json-children">
          {entries.slice(0, most).map(([key, item]) => (
            <JsonNode key={key} name={key} value={item} depth={depth + 1} />
          ))}
          {entries.length > most && (
            <button type="button" className="ui-more-lines" onClick={() => setMost(most + STEP)}>
              Show {Math.min(STEP, entries.length - most)} more of {entries.length.toLocaleString("en")}
            </button>
          )}
        </div>
      )}
    </div>
  );
}

/** What tells a folded branch from the next: its role, type or name. */
function preview(entries: BranchProps["entries"]): ReactNode {
  const found = entries.find(([key, value]) => ["role", "type", "name"].includes(key) && typeof value === "string");
  return found === undefined ? null : <span className="debug-json-hint"> {String(found[1])}</span>;
}

function Name({ name }: { name: string | null }) {
  return name === null ? null : <span className="code-function">{name}: </span>;
}

function Scalar({ value }: { value: unknown }) {
  const [isWhole, setWhole] = useState(false);
  if (typeof value === "number" || typeof value === "boolean") return <span className="code-number">{String(value)}</span>;
  if (typeof value !== "string") return <span className="code-keyword">null</span>;
  if (value.length <= MAX_TEXT || isWhole) return <span className="code-string debug-json-text">{value === "" ? '""' : value}</span>;
  return (
    <span className="code-string debug-json-text">
      {value.slice(0, MAX_TEXT)}…{" "}
      <button type="button" className="ui-link" onClick={() => setWhole(true)}>
        Show all {value.length.toLocaleString("en")} characters
      </button>
    </span>
  );
}
