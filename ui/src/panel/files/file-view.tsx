/** One file: its lines, an image, or what is known of bytes that are neither. */
import { ArrowLeft, Check, Code, Copy, Download, FileWarning, Pencil, RefreshCw, TextQuote, WrapText } from "lucide-react";
import { lazy, type MouseEvent, type SubmitEvent, Suspense, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Button, classes, EmptyState, ErrorNote, IconButton, Popover, Skeleton, TextField } from "@/components";
import { insertReference } from "@/platform/actions";
import { copyText } from "@/platform/plain-http";
import { toast } from "@/platform/toasts";
import { plural } from "@/platform/words";
import { languageOf, useHighlightedLines } from "@/text/code";
import { type FileContent, fileUrl, loadPiece, MAX_SHOWN_BYTES, richKind } from "./file-content";

interface FileViewProps {
  readonly chatId: string;
  readonly path: string;
  readonly target: { readonly line: number } | null;
  readonly canWrite: boolean;
  readonly onBack: () => void;
}

const RichView = lazy(() => import("./rich-view"));
const FileEditor = lazy(() => import("./file-editor"));
const MAX_EDITED_BYTES = 1 << 20;

export function FileView({ chatId, path, target, canWrite, onBack }: FileViewProps) {
  const file = useFile(chatId, path);
  const [wrap, setWrap] = useState(true);
  const [chosen, setChosen] = useState<LineRange | null>(target === null ? null : { from: target.line, to: target.line });
  const [shownTarget, setShownTarget] = useState(target);
  if (target !== shownTarget) {
    setShownTarget(target);
    setChosen(target === null ? null : { from: target.line, to: target.line });
  }
  const content = file.content;
  const isText = content?.kind === "text";
  const lines = useMemo(() => splitText(content?.text ?? ""), [content]);
  const slash = path.lastIndexOf("/") + 1;
  const [asSource, setAsSource] = useState(target !== null);
  const [isEdited, setEdited] = useState(false);
  const isWhole = content !== null && (content.loaded >= content.size || content.kind === "binary");
  const rich = content === null ? null : richKind(path, content.kind);
  const isRich = rich !== null && isWhole && !asSource && !isEdited && content.size > 0;
  const canEdit = canWrite && isText && isWhole && content.size <= MAX_EDITED_BYTES;
  const { reload } = file;
  const saved = () => {
    setEdited(false);
    reload();
  };

  return (
    <section className="files-view" aria-label={path}>
      <header className="panel-bar">
        <IconButton icon={ArrowLeft} label="Back to the files" className="files-back" onClick={onBack} />
        <span className="files-path ui-grow" title={path}>
          <span>{path.slice(0, slash)}</span>
          {path.slice(slash)}
        </span>
        {rich !== null && rich !== "pdf" && isWhole && !isEdited && (
          <IconButton icon={Code} label="Show the source" pressed={asSource} onClick={() => setAsSource(!asSource)} />
        )}
        {canEdit && !isEdited && <IconButton icon={Pencil} label="Edit the file" onClick={() => setEdited(true)} />}
        {isText && !isRich && !isEdited && (
          <>
            <IconButton icon={WrapText} label="Wrap long lines" pressed={wrap} onClick={() => setWrap(!wrap)} />
            <CopyButton text={content.text} isPart={content.loaded < content.size} />
            <ReferButton path={path} lines={lines} chosen={chosen} />
          </>
        )}
        <IconButton icon={RefreshCw} label="Load again" onClick={file.reload} />
        <a className="ui-icon-button" href={fileUrl(chatId, path, { download: true })} download aria-label={`Download ${path.slice(slash)}`} title="Download">
          <Download className="ui-icon ui-icon-lucide" aria-hidden="true" />
        </a>
      </header>
      <div className="files-body">
        {file.error !== null && (
          <ErrorNote
            error={file.error}
            action={
              <Button size="sm" onClick={file.reload}>
                Try again
              </Button>
            }
          />
        )}
        {content === null && file.error === null && <Loading />}
        {content?.kind === "image" && <img className="files-image" src={fileUrl(chatId, path)} alt={path.slice(slash)} key={content.version} />}
        {isRich && (
          <Suspense fallback={<Loading />}>
            <RichView kind={rich} chatId={chatId} path={path} text={content.text} size={content.size} version={content.version} />
          </Suspense>
        )}
        {isEdited && isText && (
          <Suspense fallback={<Loading />}>
            <FileEditor chatId={chatId} path={path} text={content.text} version={content.version} onSaved={saved} onCancel={() => setEdited(false)} />
          </Suspense>
        )}
        {content?.kind === "binary" && rich === null && (
          <EmptyState icon={FileWarning} title="This file is not text">
            It has {sizeText(content.size)}. Download it to open it in another program.
          </EmptyState>
        )}
        {isText && !isEdited && content.size === 0 && <p className="files-end">This file is empty.</p>}
        {isText && !isRich && !isEdited && content.size > 0 && (
          <>
            <FileLines path={path} text={content.text} wrap={wrap} chosen={chosen} onChoose={setChosen} target={shownTarget} />
            <More file={file} />
          </>
        )}
      </div>
    </section>
  );
}

function Loading() {
  return (
    <div className="panel-scroll">
      <Skeleton rows={6} />
    </div>
  );
}

function More({ file }: { readonly file: OpenFile }) {
  const content = file.content;
  if (content === null || content.loaded >= content.size) return null;
  const shown = `${sizeText(content.loaded)} of ${sizeText(content.size)} are shown.`;
  if (content.loaded >= MAX_SHOWN_BYTES) return <p className="files-end">{shown} Download the file to see the rest.</p>;
  return (
    <p className="files-end">
      {shown}{" "}
      <Button size="sm" busy={file.isLoading} onClick={file.loadMore}>
        Show more
      </Button>
    </p>
  );
}

function CopyButton({ text, isPart }: { readonly text: string; readonly isPart: boolean }) {
  const [isCopied, setCopied] = useState(false);
  const copy = () => {
    void copyText(text).then((done) => {
      if (done) setCopied(true);
      else toast("The browser did not allow copying.");
    });
    setTimeout(() => setCopied(false), 1500);
  };
  const label = isCopied ? "Copied" : isPart ? "Copy what is shown" : "Copy the file";
  return <IconButton icon={isCopied ? Check : Copy} label={label} onClick={copy} />;
}

// The lines of a file with their numbers. A click on a number chooses a line, with Shift a range.

interface LineRange {
  readonly from: number;
  readonly to: number;
}

interface FileLinesProps {
  readonly path: string;
  readonly text: string;
  readonly wrap: boolean;
  readonly chosen: LineRange | null;
  readonly onChoose: (range: LineRange) => void;
  /** The line to scroll to; another object scrolls again. */
  readonly target: { readonly line: number } | null;
}

const CHUNK = 200;

function FileLines({ path, text, wrap, chosen, onChoose, target }: FileLinesProps) {
  const lines = useMemo(() => splitText(text), [text]);
  const coloured = useHighlightedLines(lines, languageOf(path));
  const root = useRef<HTMLDivElement>(null);
  const chunks = useMemo(() => Array.from({ length: Math.ceil(lines.length / CHUNK) }, (_, index) => index * CHUNK), [lines]);

  useEffect(() => {
    if (target === null) return;
    root.current?.querySelector(`[data-line="${target.line}"]`)?.scrollIntoView({ block: "center" });
  }, [target, lines]);

  const onClick = (event: MouseEvent<HTMLDivElement>) => {
    const number = lineOf(event.target);
    if (number === null) return;
    if (event.shiftKey && chosen !== null) onChoose({ from: Math.min(chosen.from, number), to: Math.max(chosen.from, number) });
    else onChoose({ from: number, to: number });
  };

  return (
    <div className={classes("files-lines", wrap && "is-wrapped")} ref={root} role="region" aria-label={`Content of ${path}`} tabIndex={0} onClick={onClick}>
      {chunks.map((first) => (
        <div key={first} className="files-chunk">
          {lines.slice(first, first + CHUNK).map((line, offset) => {
            const number = first + offset + 1;
            const isChosen = chosen !== null && number >= chosen.from && number <= chosen.to;
            return (
              <div key={number} className={classes("files-line", isChosen && "is-on")} data-line={number}>
                <span>{number}</span>
                <code>{coloured?.[number - 1] ?? line.text}</code>
              </div>
            );
          })}
        </div>
      ))}
    </div>
  );
}

/** Without the empty line after a last line break. */
function splitText(text: string): readonly { text: string; changed: null }[] {
  const lines = text.split(/\r?\n/);
  if (lines.length > 1 && lines.at(-1) === "") lines.pop();
  return lines.map((line) => ({ text: line, changed: null }));
}

/** The number that was clicked; a click in the text is a selection of the browser. */
function lineOf(target: EventTarget): number | null {
  if (!(target instanceof HTMLElement) || target.tagName !== "SPAN" || !target.parentElement?.classList.contains("files-line")) return null;
  return Number(target.parentElement.dataset.line);
}

// Puts lines of the file into the message that is being written.

/** Of one reference: the model reads it with every message. */
const MAX_REFERENCE_CHARS = 20_000;

interface ReferButtonProps {
  readonly path: string;
  readonly lines: readonly { text: string }[];
  readonly chosen: LineRange | null;
}

function ReferButton({ path, lines, chosen }: ReferButtonProps) {
  const [isOpen, setOpen] = useState(false);
  const [error, setError] = useState("");
  const range = chosen ?? { from: 1, to: Math.min(lines.length, 20) };

  const refer = (event: SubmitEvent<HTMLFormElement>) => {
    event.preventDefault();
    const data = new FormData(event.currentTarget);
    const [from, to] = [Number(data.get("from")), Number(data.get("to"))];
    if (!(Number.isInteger(from) && Number.isInteger(to) && from >= 1 && to >= from && to <= lines.length)) {
      setError(`Choose lines between 1 and ${lines.length.toLocaleString("en")}.`);
      return;
    }
    const content = lines
      .slice(from - 1, to)
      .map((line) => line.text)
      .join("\n");
    if (content.length > MAX_REFERENCE_CHARS) {
      setError(`These lines have more than ${MAX_REFERENCE_CHARS.toLocaleString("en")} characters. Choose fewer.`);
      return;
    }
    insertReference({ type: "file-reference", file_name: path, start_line: from, end_line: to, content });
    setOpen(false);
    setError("");
    toast(`${path}, lines ${from} to ${to}, is in your message.`);
  };

  return (
    <Popover
      label="Refer to lines"
      align="end"
      open={isOpen}
      onOpenChange={setOpen}
      trigger={<IconButton icon={TextQuote} label="Refer to lines in your message" tooltip={!isOpen} />}
    >
      <form className="files-refer" onSubmit={refer} key={`${range.from}-${range.to}`}>
        <TextField label="First line" name="from" type="number" min={1} max={lines.length} defaultValue={range.from} />
        <TextField label="Last line" name="to" type="number" min={1} max={lines.length} defaultValue={range.to} />
        {error !== "" && <p role="alert">{error}</p>}
        <Button type="submit" variant="primary" size="sm">
          Add to message
        </Button>
      </form>
    </Popover>
  );
}

// One file of the workspace, loaded piece by piece.

interface OpenFile {
  readonly content: FileContent | null;
  readonly error: unknown;
  readonly isLoading: boolean;
  readonly loadMore: () => void;
  readonly reload: () => void;
}

function useFile(chatId: string, path: string): OpenFile {
  const [content, setContent] = useState<FileContent | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [isLoading, setLoading] = useState(true);
  const controller = useRef<AbortController | null>(null);

  const load = useCallback(
    (before: FileContent | null) => {
      controller.current?.abort();
      const made = new AbortController();
      controller.current = made;
      setLoading(true);
      setError(null);
      loadPiece(chatId, path, before, made.signal)
        .then(setContent, (reason: unknown) => {
          if (!made.signal.aborted) setError(reason);
        })
        .finally(() => {
          if (!made.signal.aborted) setLoading(false);
        });
    },
    [chatId, path],
  );

  useEffect(() => {
    // The component is keyed by its file: nothing of another one is left.
    // eslint-disable-next-line react-hooks/set-state-in-effect
    load(null);
    return () => controller.current?.abort();
  }, [load]);

  const loadMore = useCallback(() => load(content), [load, content]);
  const reload = useCallback(() => load(null), [load]);
  return { content, error, isLoading, loadMore, reload };
}

/** A size for people: "812 bytes", "3.4 KB". */
function sizeText(bytes: number): string {
  if (bytes < 1000) return plural(bytes, "byte");
  const units = ["KB", "MB", "GB", "TB"];
  let value = bytes / 1000;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 })} ${units[unit]}`;
}
