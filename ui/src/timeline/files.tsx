/** Files of messages: chips, small previews of images, and a large view. */
import { Download, File as FileIcon, FileText } from "lucide-react";
import { lazy, Suspense, useState } from "react";
import { Icon } from "@/components";
import { fileName } from "@/text/code";
import { fileUrl } from "./actions";
import type { FileChip, Reference } from "./rows/row";

const Lightbox = lazy(async () => ({ default: (await import("@/components/lightbox")).Lightbox }));
const TextDialog = lazy(() => import("./text-dialog"));
const PREVIEWS = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

export function FileList({ files }: { readonly files: readonly FileChip[] }) {
  return (
    <div className="timeline-files">
      {files.map((file, index) =>
        file.media_type === "video/mp4" ? (
          <video key={index} className="timeline-video" controls preload="none" src={urlOf(file) ?? ""} poster={posterOf(files)} aria-label={file.name ?? ""} />
        ) : (
          file.name !== POSTER && <FileItem key={index} file={file} />
        ),
      )}
    </div>
  );
}

/** The picture of a recording, which stands beside it. */
const POSTER = "recording.jpg";
const posterOf = (files: readonly FileChip[]) => files.map((file) => (file.name === POSTER ? (urlOf(file) ?? "") : "")).join("");

function FileItem({ file }: { readonly file: FileChip }) {
  const [hasFailed, setFailed] = useState(false);
  const name = file.name ?? "File";
  const url = urlOf(file);
  if (url !== null && PREVIEWS.has(file.media_type) && !hasFailed) {
    return <ImagePreview url={url} name={name} onError={() => setFailed(true)} />;
  }
  if (url !== null && isText(file)) return <TextPreview url={url} name={name} />;
  const icon = file.media_type.startsWith("text/") ? FileText : FileIcon;
  const label = (
    <>
      <Icon of={icon} size="sm" />
      <span className="ui-ellipsis">{name}</span>
      {hasFailed && <span className="tone-subtle">cannot be shown</span>}
    </>
  );
  if (url === null) return <span className="ui-chip">{label}</span>;
  return (
    <a className="ui-chip" href={url} download={name} title={`Download ${name}`}>
      {label}
      <Icon of={Download} size="sm" />
    </a>
  );
}

const isText = (file: FileChip): boolean => file.media_type.startsWith("text/") || /^application\/(?:json|xml|x-yaml|toml)\b/.test(file.media_type);

/** A press shows what is in it; the arrow beside it downloads it. */
function TextPreview({ url, name }: { readonly url: string; readonly name: string }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <span className="ui-chip">
      <button type="button" className="timeline-file-open" aria-label={`Show ${name}`} onClick={() => setOpen(true)}>
        <Icon of={FileText} size="sm" />
        <span className="ui-ellipsis">{name}</span>
      </button>
      <a className="timeline-file-load" href={url} download={name} aria-label={`Download ${name}`}>
        <Icon of={Download} size="sm" />
      </a>
      {isOpen && (
        <Suspense>
          <TextDialog url={url} name={name} onClose={() => setOpen(false)} />
        </Suspense>
      )}
    </span>
  );
}

function urlOf(file: FileChip): string | null {
  if (file.file_id) return fileUrl(file.file_id);
  return file.data && PREVIEWS.has(file.media_type) ? `data:${file.media_type};base64,${file.data}` : null;
}

function ImagePreview({ url, name, onError }: { readonly url: string; readonly name: string; readonly onError: () => void }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <button type="button" className="timeline-preview" aria-label={`Show ${name}`} onClick={() => setOpen(true)}>
        <img src={url} alt={name} loading="lazy" onError={onError} />
      </button>
      {isOpen && (
        <Suspense>
          <Lightbox url={url} name={name} onClose={() => setOpen(false)} />
        </Suspense>
      )}
    </>
  );
}

/** Lines of files that the user quoted. */
export function ReferenceList({ references }: { readonly references: readonly Reference[] }) {
  return (
    <div className="timeline-files">
      {references.map((reference, index) => (
        <details key={index} className="timeline-quote">
          <summary className="ui-chip" title={reference.file_name}>
            <Icon of={FileText} size="sm" />
            <span className="ui-ellipsis">
              {fileName(reference.file_name)}:{lineRange(reference)}
            </span>
          </summary>
          <pre tabIndex={0}>{reference.content}</pre>
        </details>
      ))}
    </div>
  );
}

function lineRange({ start_line, end_line }: Reference): string {
  return start_line === end_line ? String(start_line) : `${start_line}-${end_line}`;
}
