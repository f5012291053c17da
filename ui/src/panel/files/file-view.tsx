/** One file: its lines, an image, or what is known of bytes that are neither. */
import { ArrowLeft, Check, Copy, Download, FileWarning, RefreshCw, WrapText } from "lucide-react";
import { useMemo, useState } from "react";
import { Button, EmptyState, ErrorNote, IconButton, Skeleton } from "@/components";
import { toast } from "@/platform/toasts";
import { fileUrl, MAX_SHOWN_BYTES } from "./file-content";
import { FileLines, type LineRange, splitText } from "./file-lines";
import { ReferButton } from "./refer-button";
import { sizeText } from "./size-text";
import { type OpenFile, useFile } from "./use-file";

interface FileViewProps {
  readonly chatId: string;
  readonly path: string;
  readonly target: { readonly line: number } | null;
  readonly onBack: () => void;
}

export function FileView({ chatId, path, target, onBack }: FileViewProps) {
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

  return (
    <section className="files-view" aria-label={path}>
      <header className="panel-bar">
        <IconButton icon={ArrowLeft} label="Back to the files" className="files-back" onClick={onBack} />
        <span className="files-path ui-grow" title={path}>
          <span>{path.slice(0, slash)}</span>
          {path.slice(slash)}
        </span>
        {isText && (
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
        {file.error !== null && <ErrorNote error={file.error} action={<Button size="sm" onClick={file.reload}>Try again</Button>} />}
        {content === null && file.error === null && <div className="panel-scroll"><Skeleton rows={6} /></div>}
        {content?.kind === "image" && <img className="files-image" src={fileUrl(chatId, path)} alt={path.slice(slash)} key={content.version} />}
        {content?.kind === "binary" && (
          <EmptyState icon={FileWarning} title="This file is not text">
            It has {sizeText(content.size)}. Download it to open it in another program.
          </EmptyState>
        )}
        {isText && content.size === 0 && <p className="files-end">This file is empty.</p>}
        {isText && content.size > 0 && (
          <>
            <FileLines path={path} text={content.text} wrap={wrap} chosen={chosen} onChoose={setChosen} target={shownTarget} />
            <More file={file} />
          </>
        )}
      </div>
    </section>
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
    navigator.clipboard.writeText(text).then(
      () => setCopied(true),
      () => toast("The browser did not allow copying. It needs https."),
    );
    setTimeout(() => setCopied(false), 1500);
  };
  const label = isCopied ? "Copied" : isPart ? "Copy what is shown" : "Copy the file";
  return <IconButton icon={isCopied ? Check : Copy} label={label} onClick={copy} />;
}
