/** Files as what they are: a page, a document, a table, a notebook. Loaded when the first one is opened. */
import { useEffect, useMemo, useState } from "react";
import { ErrorNote, Skeleton } from "@/components";
import { CodeBlock } from "@/text/code";
import { Markdown } from "@/text/markdown";
import { fileUrl, type RichKind } from "./file-content";
import { type Cell, readNotebook, readTable } from "./tables";

const MAX_ROWS = 500;
const MAX_PDF_BYTES = 50_000_000;

interface RichViewProps {
  readonly kind: RichKind;
  readonly chatId: string;
  readonly path: string;
  readonly text: string;
  readonly size: number;
  readonly version: string;
}

export default function RichView({ kind, chatId, path, text, size, version }: RichViewProps) {
  if (kind === "pdf") return <PdfView key={version} url={fileUrl(chatId, path, { download: true })} path={path} size={size} />;
  if (kind === "html")
    // The server's policy for this address gives the page an origin of its own, without requests.
    return <iframe key={version} className="files-frame" title={`Page ${path}`} src={fileUrl(chatId, path, { page: true })} sandbox="allow-scripts" />;
  if (kind === "table") return <TableView text={text} separator={path.endsWith(".tsv") ? "\t" : ","} path={path} />;
  if (kind === "notebook") return <NotebookView text={text} path={path} />;
  return (
    <div className="files-rich" role="region" aria-label={`Document ${path}`} tabIndex={0}>
      <Markdown text={text} />
    </div>
  );
}

function PdfView({ url, path, size }: { readonly url: string; readonly path: string; readonly size: number }) {
  const [shown, setShown] = useState<string | null>(null);
  const [error, setError] = useState<unknown>(null);
  const isLarge = size > MAX_PDF_BYTES;
  useEffect(() => {
    if (isLarge) return;
    const controller = new AbortController();
    let made: string | null = null;
    fetch(url, { credentials: "same-origin", signal: controller.signal })
      .then(async (reply) => {
        if (!reply.ok) throw new Error(`The server answered ${reply.status}.`);
        // The type is fixed here: whatever the file has, the browser takes it for a document.
        made = URL.createObjectURL(new Blob([await reply.arrayBuffer()], { type: "application/pdf" }));
        setShown(made);
      })
      .catch((reason: unknown) => {
        if (!controller.signal.aborted) setError(reason);
      });
    return () => {
      controller.abort();
      if (made !== null) URL.revokeObjectURL(made);
    };
  }, [url, isLarge]);
  if (isLarge) return <p className="files-end">This document is too large to be shown here. Download it.</p>;
  if (error !== null) return <ErrorNote error={error} />;
  if (shown === null)
    return (
      <div className="panel-scroll">
        <Skeleton rows={6} />
      </div>
    );
  return <iframe className="files-frame" title={`Document ${path}`} src={shown} />;
}

function TableView({ text, separator, path }: { readonly text: string; readonly separator: string; readonly path: string }) {
  const rows = useMemo(() => readTable(text, separator, MAX_ROWS + 2), [text, separator]);
  const [head, ...body] = rows.slice(0, MAX_ROWS + 1);
  if (head === undefined) return <p className="files-end">This file is empty.</p>;
  return (
    <div className="files-rich" role="region" aria-label={`Table ${path}`} tabIndex={0}>
      <table className="files-table">
        <thead>
          <tr>
            {head.map((cell, index) => (
              <th key={index} scope="col">
                {cell}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {body.map((row, index) => (
            <tr key={index}>
              {row.map((cell, column) => (
                <td key={column}>{cell}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > MAX_ROWS + 1 && <p className="files-end">The first {MAX_ROWS} rows are shown.</p>}
    </div>
  );
}

function NotebookView({ text, path }: { readonly text: string; readonly path: string }) {
  const notebook = useMemo(() => readNotebook(text), [text]);
  if (notebook === null) return <p className="files-end">This notebook cannot be read. See its source.</p>;
  return (
    <div className="files-rich" role="region" aria-label={`Notebook ${path}`} tabIndex={0}>
      {notebook.cells.map((cell, index) => (
        <NotebookCell key={index} cell={cell} language={notebook.language} />
      ))}
      {notebook.isCut && <p className="files-end">The first {notebook.cells.length} cells are shown.</p>}
    </div>
  );
}

function NotebookCell({ cell, language }: { readonly cell: Cell; readonly language: string }) {
  if (cell.kind === "text") return <Markdown text={cell.source} />;
  return (
    <div className="files-cell">
      <CodeBlock text={cell.source} language={language} />
      {cell.outputs.map((output, index) =>
        output.kind === "image" ? (
          <img key={index} className="files-image" src={output.url} alt="Output of the cell" />
        ) : (
          <pre key={index} className={output.isError ? "files-output tone-danger" : "files-output"}>
            {output.text}
          </pre>
        ),
      )}
    </div>
  );
}
