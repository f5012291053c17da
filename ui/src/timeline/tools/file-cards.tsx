/** Files: read_file (also several in a row), write_file, edit_files, and tools that list or search. */
import { FileText, FolderTree, Pencil, Search } from "lucide-react";
import { DiffLines } from "@/text/diff-view";
import { type EditedFile, editedFiles, hitsOf, readsView } from "../rows/call-view";
import { asObject, numberOf, textOf } from "../rows/json";
import type { ReadsRow } from "../rows/row";
import type { ToolCall } from "../rows/tool-call";
import { type CardProps, ToolFrame } from "./frame";
import { Output } from "./output";

export function ReadsLine({ row }: { readonly row: ReadsRow }) {
  const [first] = row.calls;
  if (first === undefined) return null;
  return (
    <ToolFrame call={first} rowKey={row.key} icon={FileText} view={readsView(row.calls)}>
      {row.calls.length === 1 ? <ReadContent call={first} /> : <ReadList calls={row.calls} />}
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
  return <ToolFrame call={call} rowKey={rowKey} icon={FileText} />;
}

const WRITING_LINES = 24;

export function WriteCard({ call, rowKey }: CardProps) {
  const isWriting = call.state === "streaming" || call.state === "running";
  const [file] = editedFiles(call);
  const [written] = file?.hunks ?? [];
  const lines = written?.lines ?? [];
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={FileText} consequence="Nothing was written.">
      {call.state !== "failed" && file !== undefined && lines.length > 0 && (
        <DiffLines hunks={isWriting ? [{ title: "", lines: lines.slice(-WRITING_LINES) }] : file.hunks} path={file.path} />
      )}
    </ToolFrame>
  );
}

export function EditCard({ call, rowKey }: CardProps) {
  const files = editedFiles(call);
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={Pencil} consequence="The agent was told why.">
      {call.state !== "failed" && files.length > 0 && files.map((file, index) => <FileEdits key={index} file={file} isOnly={files.length === 1} />)}
    </ToolFrame>
  );
}

function FileEdits({ file, isOnly }: { readonly file: EditedFile; readonly isOnly: boolean }) {
  return (
    <>
      {!isOnly && <div className="diff-hunk is-path">{file.path}</div>}
      <DiffLines hunks={file.hunks} path={file.path} />
    </>
  );
}

/** Tools that look for files or for text in them: the pattern is what matters. */
export function SearchCard({ call, rowKey }: CardProps) {
  const result = asObject(call.result);
  const output = textOf(result, "output") || textOf(result, "content");
  const lines = hitsOf(result)
    .map((hit) => (typeof hit === "string" ? hit : textOf(asObject(hit), "path") || JSON.stringify(hit)))
    .join("\n");
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={call.name.startsWith("list") ? FolderTree : Search}>
      {call.state !== "failed" && (lines || output) && <Output text={lines || output} label="Result" />}
    </ToolFrame>
  );
}
