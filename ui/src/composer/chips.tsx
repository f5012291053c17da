import { FileText, Image as ImageIcon, MessageSquareText, X } from "lucide-react";
import { Chip, classes, Icon } from "@/components";
import type { Attachment, MessageDraft } from "./draft/draft";

interface ChipsProps {
  draft: MessageDraft;
  onRemoveFile: (attachment: Attachment) => void;
  onRemoveReference: (index: number) => void;
}

/** What goes with the text: quoted lines and files. */
export function Chips({ draft, onRemoveFile, onRemoveReference }: ChipsProps) {
  if (draft.references.length === 0 && draft.attachments.length === 0) return null;
  return (
    <div className="composer-chips">
      {draft.references.map((part, index) => (
        <Chip
          key={`${part.file_name}:${part.start_line}:${index}`}
          icon={MessageSquareText}
          onRemove={() => onRemoveReference(index)}
          removeLabel={`Remove ${baseName(part.file_name)}`}
        >
          {baseName(part.file_name)}:{part.start_line}
          {part.end_line > part.start_line ? `–${part.end_line}` : ""}
        </Chip>
      ))}
      {draft.attachments.map((one) => (
        <FileChip key={one.id} attachment={one} onRemove={() => onRemoveFile(one)} />
      ))}
    </div>
  );
}

function baseName(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

function FileChip({ attachment, onRemove }: { attachment: Attachment; onRemove: () => void }) {
  const isImage = attachment.mediaType.startsWith("image/");
  return (
    <span className={classes("ui-chip composer-upload", attachment.state === "failed" && "is-bad")} aria-busy={attachment.state === "uploading"}>
      {attachment.previewUrl === null ? (
        <Icon of={isImage ? ImageIcon : FileText} size="sm" />
      ) : (
        <img src={attachment.previewUrl} alt="" />
      )}
      <span className="ui-ellipsis">{attachment.name}</span>
      <span className="tone-subtle" role={attachment.state === "failed" ? "alert" : undefined}>
        {stateText(attachment)}
      </span>
      <button type="button" aria-label={`Remove ${attachment.name}`} onClick={onRemove}>
        <Icon of={X} size="sm" />
      </button>
      {attachment.state === "uploading" && <progress max={1} value={attachment.progress} aria-label={`Uploading ${attachment.name}`} />}
    </span>
  );
}

function stateText(attachment: Attachment): string {
  if (attachment.state === "failed") return attachment.error ?? "Failed";
  if (attachment.state === "uploading") return `${Math.round(attachment.progress * 100)}%`;
  return attachment.size === 0 ? "" : sizeText(attachment.size);
}

export function sizeText(bytes: number): string {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1_000_000 ? `${Math.round(bytes / 1000)} KB` : `${(bytes / 1_000_000).toFixed(1)} MB`;
}

