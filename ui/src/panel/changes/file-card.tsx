import { Check, ChevronDown, ChevronRight, Eye, Undo2 } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { Icon, IconButton, PlusMinus, Tag } from "@/components";
import { closePanel, insertReference, insertText } from "@/platform/actions";
import { useIsPhone } from "@/platform/media";
import type { DrawnLine } from "@/text/diff";
import type { FileDiff } from "@/text/git-diff";
import { DiffBody } from "./diff-body";

const MAX_OPEN_LINES = 1500;

interface FileCardProps {
  readonly chatId: string;
  /** The repository of the file. */
  readonly root: string;
  readonly file: FileDiff;
  readonly isSplit: boolean;
  readonly isSeen: boolean;
  /** Beyond the first files a diff opens by a press. */
  readonly startsOpen: boolean;
  /** Set: the card opens, scrolls into view and takes the focus. */
  readonly target: object | null;
  readonly onSeen: (isSeen: boolean) => void;
  /** Null: the user cannot revert it. */
  readonly onRevert: (() => void) | null;
}

/** One changed file: head with counts, and its lines unless it is folded or seen. */
export function FileCard({ chatId, root, file, isSplit, isSeen, startsOpen, target, onSeen, onRevert }: FileCardProps) {
  const [chosen, setChosen] = useState<boolean | null>(null);
  const [openedFor, setOpenedFor] = useState<object | null>(null);
  const head = useRef<HTMLButtonElement>(null);
  if (target !== null && target !== openedFor) {
    setOpenedFor(target);
    setChosen(true);
  }
  useEffect(() => {
    if (target === null) return;
    head.current?.scrollIntoView({ block: "start" });
    head.current?.focus({ preventScroll: true });
  }, [target]);
  const isPhone = useIsPhone();
  const isOpen = chosen ?? (startsOpen && !isSeen && file.added + file.removed <= MAX_OPEN_LINES);
  const comment = (line: DrawnLine, text: string) => {
    const number = line.newNumber ?? line.oldNumber ?? 1;
    insertReference({ type: "file-reference", file_name: file.path, start_line: number, end_line: number, content: line.text });
    if (text !== "") insertText(text);
    if (isPhone) closePanel();
  };
  return (
    <section className="changes-file" aria-label={file.path}>
      <header>
        <button ref={head} type="button" className="changes-file-fold" aria-expanded={isOpen} onClick={() => setChosen(!isOpen)}>
          <Icon of={isOpen ? ChevronDown : ChevronRight} size="sm" className="tone-subtle" />
          <FilePath file={file} />
        </button>
        <KindTag file={file} />
        <PlusMinus added={file.added} removed={file.removed} />
        {onRevert !== null && <IconButton size="sm" icon={Undo2} label="Revert file" onClick={onRevert} />}
        <IconButton
          size="sm"
          icon={isSeen ? Check : Eye}
          label={isSeen ? "Seen; mark as not seen" : "Mark as seen"}
          pressed={isSeen}
          className={isSeen ? "is-seen" : ""}
          onClick={() => {
            setChosen(null);
            onSeen(!isSeen);
          }}
        />
      </header>
      {isOpen &&
        (file.hunks.length === 0 ? (
          <p className="changes-file-note">{emptyText(file)}</p>
        ) : (
          <DiffBody chatId={chatId} root={root} file={file} isSplit={isSplit} onComment={comment} />
        ))}
    </section>
  );
}

function FilePath({ file }: { file: FileDiff }) {
  const at = file.path.lastIndexOf("/") + 1;
  return (
    <span className="changes-path ui-ellipsis" title={file.oldPath === null ? file.path : `${file.oldPath} → ${file.path}`}>
      {file.oldPath !== null && <span>{file.oldPath} → </span>}
      <span>{file.path.slice(0, at)}</span>
      {file.path.slice(at)}
    </span>
  );
}

function KindTag({ file }: { file: FileDiff }) {
  if (file.kind === "added") return <Tag tone="ok">new</Tag>;
  if (file.kind === "deleted") return <Tag tone="danger">deleted</Tag>;
  if (file.kind === "renamed") return <Tag>renamed</Tag>;
  if (file.kind === "copied") return <Tag>copied</Tag>;
  if (file.kind === "conflict") return <Tag tone="warn">conflict</Tag>;
  return file.modes === null ? null : <Tag>mode</Tag>;
}

function emptyText(file: FileDiff): string {
  if (file.kind === "conflict") return "A merge is in progress. Its lines are shown once it is resolved.";
  if (file.isBinary) return "A binary file. Its content is not shown.";
  if (file.modes !== null) return `The mode changed from ${file.modes[0]} to ${file.modes[1]}.`;
  if (file.kind === "renamed") return "Only its name changed.";
  return "The file is empty.";
}
