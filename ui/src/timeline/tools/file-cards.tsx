/** Files: read_file (also several in a row), write_file, edit_files, and tools that list or search. */
import { FileText, FolderTree, Pencil, Search } from "lucide-react";
import { type ReactNode, useMemo, useState } from "react";
import { PlusMinus } from "@/components";
import { durationText, plural } from "@/platform/words";
import { fileName, languageOf, useHighlightedLines } from "@/text/code";
import { countDiff, type DiffLine, diffOfEdit, readDiff } from "@/text/diff";
import { asObject, listOf, numberOf, objectsOf, textOf } from "../rows/json";
import type { ReadsRow } from "../rows/row";
import { durationOf, type ToolCall } from "../rows/tool-call";
import { type CardProps, Failure, ToolFrame, verbOf } from "./frame";
import { Output } from "./output";

const OPEN_LINES = 80;

export function ReadsLine({ row }: { readonly row: ReadsRow }) {
  const [first] = row.calls;
  if (first === undefined) return null;
  const paths = row.calls.map((call) => textOf(call.args, "path"));
  const took = row.calls.reduce((sum, call) => sum + (durationOf(call) ?? 0), 0);
  const isOne = row.calls.length === 1;
  return (
    <ToolFrame
      call={first}
      rowKey={row.key}
      icon={FileText}
      verb={isOne ? "Read" : `Read ${row.calls.length} files`}
      subject={isOne ? (paths[0] ?? "") : [...new Set(paths.map(fileName))].join(", ")}
      meta={<span>{took > 0 ? durationText(took) : ""}</span>}
    >
      {isOne ? <ReadContent call={first} /> : <ReadList calls={row.calls} />}
    </ToolFrame>
  );
}

function ReadContent({ call }: { readonly call: ToolCall }) {
  const content = textOf(asObject(call.result), "content");
  return content === "" ? <Output text="(empty)" label="Content" /> : <Output text={content} label="Content" />;
}

function ReadList({ calls }: { readonly calls: readonly ToolCall[] }) {
  return (
    <ul className="tool-steps">
      {calls.map((call, index) => (
        <li key={index}>
          <code className="ui-ellipsis ui-grow">{textOf(call.args, "path")}</code>
          <span className="tone-subtle">{linesRead(call)}</span>
        </li>
      ))}
    </ul>
  );
}

function linesRead(call: ToolCall): string {
  const result = asObject(call.result);
  const read = numberOf(result, "lines_read");
  const from = numberOf(call.args, "offset") ?? 1;
  const total = numberOf(result, "total_lines");
  if (read === null) return "";
  return total === null || read >= total ? `${read} lines` : `lines ${from} to ${from + read - 1} of ${total}`;
}

export function ReadCard({ call, rowKey }: CardProps) {
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={FileText} verb={verbOf(call, "Reading", "Read", "Not read")} subject={textOf(call.args, "path")}>
      {call.state === "failed" && <Failure text={textOf(asObject(call.result), "error")} />}
    </ToolFrame>
  );
}

export function WriteCard({ call, rowKey }: CardProps) {
  const path = textOf(call.args, "path");
  const content = textOf(call.args, "content");
  const lines = useMemo(() => numbered(diffOfEdit("", content)), [content]);
  const isWriting = call.state === "streaming" || call.state === "running";
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={FileText}
      verb={verbOf(call, "Writing", "Wrote", "Not written")}
      subject={path}
      meta={call.state === "done" ? <PlusMinus added={lines.length} removed={0} /> : undefined}
      opens={call.state === "failed" || isWriting || (call.state === "done" && lines.length <= OPEN_LINES && !isPlan(path))}
    >
      {call.state === "failed" ? (
        <Failure text={textOf(asObject(call.result), "error")} then="Nothing was written." />
      ) : (
        lines.length > 0 && <DiffLines lines={isWriting ? lines.slice(-24) : lines} path={path} />
      )}
    </ToolFrame>
  );
}

/** The plan of a chat is read where the agent proposes it. */
function isPlan(path: string): boolean {
  return /(^|\/)\.chatd\/plans\/PLAN-[^/]+\.md$/.test(path);
}

function numbered(lines: readonly DiffLine[]): readonly DiffLine[] {
  return lines.map((line, index) => ({ ...line, number: index + 1 }));
}

interface FileDiff {
  readonly path: string;
  readonly lines: readonly DiffLine[];
}

export function EditCard({ call, rowKey }: CardProps) {
  const files = useMemo(() => fileDiffs(call), [call]);
  const counts = files.map((file) => countDiff(file.lines));
  const plus = counts.reduce((sum, count) => sum + count.added, 0);
  const minus = counts.reduce((sum, count) => sum + count.removed, 0);
  const [first] = files;
  const error = textOf(asObject(call.result), "error");
  const isFailed = call.state === "failed";
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={Pencil}
      verb={verbOf(call, "Editing", files.length > 1 ? `Edited ${files.length} files` : "Edited", "Edit failed")}
      subject={files.length > 1 ? files.map((file) => fileName(file.path)).join(", ") : (first?.path ?? "")}
      meta={isFailed ? <span>nothing changed</span> : call.state === "done" ? <PlusMinus added={plus} removed={minus} /> : undefined}
      opens={isFailed || (call.state !== "interrupted" && plus + minus <= OPEN_LINES && !files.every((file) => isPlan(file.path)))}
    >
      {isFailed ? (
        <Failure text={error} then="The agent was told why." />
      ) : (
        files.length > 0 && files.map((file, index) => <FileEdits key={index} file={file} isOnly={files.length === 1} />)
      )}
    </ToolFrame>
  );
}

function FileEdits({ file, isOnly }: { readonly file: FileDiff; readonly isOnly: boolean }) {
  return (
    <>
      {!isOnly && <div className="diff-hunk is-path">{file.path}</div>}
      <DiffLines lines={file.lines} path={file.path} />
    </>
  );
}

/** From the result, or, before there is one, from what the model asks for. */
function fileDiffs(call: ToolCall): readonly FileDiff[] {
  const done = objectsOf(asObject(call.result), "files").map((file) => ({
    path: textOf(file, "path"),
    lines: readDiff(textOf(file, "diff")),
  }));
  if (done.length > 0) return done;
  return objectsOf(call.args, "files").map((file) => ({
    path: textOf(file, "path"),
    lines: objectsOf(file, "edits").flatMap((edit) =>
      diffOfEdit(textOf(edit, "old_text") || textOf(edit, "search"), textOf(edit, "new_text") || textOf(edit, "replace")),
    ),
  }));
}

/** Tools that look for files or for text in them: the pattern is what matters. */
export function SearchCard({ call, rowKey }: CardProps) {
  const result = asObject(call.result);
  const isListing = call.name.startsWith("list");
  const subject = ["pattern", "query", "regex", "glob", "path", "directory"].map((key) => textOf(call.args, key)).find(Boolean) ?? "";
  const hits = ["matches", "files", "entries", "results"].map((key) => listOf(result, key)).find((list) => list.length > 0) ?? [];
  const output = textOf(result, "output") || textOf(result, "content");
  const lines = hits.map((hit) => (typeof hit === "string" ? hit : textOf(asObject(hit), "path") || JSON.stringify(hit))).join("\n");
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={isListing ? FolderTree : Search}
      verb={isListing ? verbOf(call, "Listing", "Listed") : verbOf(call, "Searching", "Searched")}
      subject={subject}
      meta={hits.length > 0 ? <span>{plural(hits.length, "hit")}</span> : undefined}
    >
      {call.state === "failed" ? <Failure text={textOf(result, "error")} /> : (lines || output) && <Output text={lines || output} label="Result" />}
    </ToolFrame>
  );
}

// Lines of a diff, one below the other. Long diffs are shown in steps.

const FIRST = 60;
const STEP = 500;

function DiffLines({ lines, path }: { readonly lines: readonly DiffLine[]; readonly path: string }) {
  const [count, setCount] = useState(FIRST);
  const shown = lines.slice(0, count);
  const coloured = useHighlightedLines(shown, languageOf(path));
  const hidden = lines.length - shown.length;
  return (
    <div className="diff-box" tabIndex={0} role="group" aria-label={`Changes in ${path}`}>
      {shown.map((line, index) =>
        line.type === "hunk" ? (
          <div key={index} className="diff-hunk">
            {line.text}
          </div>
        ) : (
          <div key={index} className={line.type === "context" ? "diff-line" : `diff-line is-${line.type}`}>
            <span>{line.number}</span>
            <span>{line.type === "add" ? "+" : line.type === "del" ? "−" : " "}</span>
            <code>{coloured?.[index] ?? plainLine(line)}</code>
          </div>
        ),
      )}
      {hidden > 0 && (
        <button type="button" className="ui-more-lines" onClick={() => setCount(count + STEP)}>
          {hidden <= STEP ? `Show all ${lines.length.toLocaleString("en")} lines` : `Show ${STEP} of ${hidden.toLocaleString("en")} more lines`}
        </button>
      )}
    </div>
  );
}

function plainLine(line: DiffLine): ReactNode {
  if (line.changed === null) return line.text;
  const [from, to] = line.changed;
  return (
    <>
      {line.text.slice(0, from)}
      <mark>{line.text.slice(from, to)}</mark>
      {line.text.slice(to)}
    </>
  );
}
