import { ArrowDown, ArrowUp, CornerDownRight, GripVertical, Pencil, X } from "lucide-react";
import { useRef, type DragEvent, type KeyboardEvent } from "react";
import { Button, classes, Icon, IconButton, Tag } from "@/components";
import type { QueuedMessage } from "@/chat-state";
import { isComposing } from "../keys";
import { fileCount, textOf, type QueueActions } from "./queue-actions";
import { tell } from "../tell";

interface QueueRowProps {
  message: QueuedMessage;
  /** Null for one that steers. */
  position: number | null;
  canMoveUp: boolean;
  canMoveDown: boolean;
  /** The new text, while it is edited. */
  editing: string | null;
  isDragged: boolean;
  actions: QueueActions;
  onMove: (step: -1 | 1) => void;
  onEdit: (text: string | null) => void;
  onDrag: (id: number | null) => void;
  onDrop: (event: DragEvent) => void;
  onDone: () => void;
}

export function QueueRow(props: QueueRowProps) {
  const { message, editing, isDragged, onDrag, onDrop } = props;
  return (
    <li
      className={classes("composer-queue-row", editing !== null && "is-edited", isDragged && "is-dragged", message.steer === true && "is-steering")}
      data-queue-id={message.id}
      draggable={editing === null}
      onDragStart={(event) => {
        event.dataTransfer.effectAllowed = "move";
        event.dataTransfer.setData("text/plain", textOf(message));
        onDrag(message.id);
      }}
      onDragEnd={() => onDrag(null)}
      onDragOver={(event) => event.preventDefault()}
      onDrop={onDrop}
      onKeyDown={(event) => moveByKey(event, props)}
    >
      <Place position={props.position} />
      {editing === null ? <Shown {...props} /> : <Edited {...props} text={editing} />}
    </li>
  );
}

function moveByKey(event: KeyboardEvent, { canMoveUp, canMoveDown, onMove }: QueueRowProps): void {
  if (!event.altKey || (event.key !== "ArrowUp" && event.key !== "ArrowDown")) return;
  event.preventDefault();
  event.stopPropagation();
  if (event.key === "ArrowUp" && canMoveUp) onMove(-1);
  if (event.key === "ArrowDown" && canMoveDown) onMove(1);
}

/** The number becomes the handle under the pointer. */
function Place({ position }: { position: number | null }) {
  if (position === null) return <Icon of={CornerDownRight} className="tone-accent" label="Steers" />;
  return (
    <>
      <span className="composer-position">{position}</span>
      <span className="composer-grip" aria-hidden="true">
        <Icon of={GripVertical} />
      </span>
    </>
  );
}

function Shown({ message, canMoveUp, canMoveDown, actions, onMove, onEdit, onDone }: QueueRowProps) {
  const text = textOf(message);
  const files = fileCount(message);
  const name = text === "" ? `${files} files` : text.slice(0, 60);
  return (
    <>
      <span className="ui-ellipsis ui-grow" title={text}>
        {firstLine(text)}
      </span>
      {files > 0 && <span className="tone-subtle ui-countdown">{files === 1 ? "1 file" : `${files} files`}</span>}
      {message.steer === true && <Tag tone="accent">Steers at the next step</Tag>}
      <span className="ui-actions">
        {canMoveUp && <IconButton icon={ArrowUp} size="sm" label="Move up" shortcut="Alt ↑" onClick={() => onMove(-1)} aria-description={name} />}
        {canMoveDown && <IconButton icon={ArrowDown} size="sm" label="Move down" shortcut="Alt ↓" onClick={() => onMove(1)} aria-description={name} />}
        <IconButton icon={Pencil} size="sm" label="Edit" onClick={() => onEdit(text)} aria-description={name} />
        <Button size="xs" onClick={() => tell(actions.promote(message.id))} aria-description={name}>
          Send now
        </Button>
        <IconButton
          icon={X}
          size="sm"
          label="Remove"
          aria-description={name}
          onClick={() => {
            tell(actions.remove(message.id));
            onDone();
          }}
        />
      </span>
    </>
  );
}

function firstLine(text: string): string {
  const line = text.trimStart().split("\n", 1)[0] ?? "";
  return line === "" ? "Files only" : line;
}

function Edited({ message, text, actions, onEdit, onDone }: QueueRowProps & { text: string }) {
  const isSaving = useRef(false);
  const save = () => {
    if (isSaving.current || text.trim() === "") return;
    isSaving.current = true;
    const isSame = text === textOf(message);
    onEdit(null);
    onDone();
    if (!isSame) tell(actions.edit(message, text));
  };
  const cancel = () => {
    onEdit(null);
    onDone();
  };
  return (
    <>
      <textarea
        className="ui-grow"
        aria-label="Queued message"
        rows={Math.min(6, text.split("\n").length)}
        value={text}
        // The user has just asked to edit it.
        autoFocus
        onFocus={(event) => event.target.setSelectionRange(text.length, text.length)}
        onChange={(event) => onEdit(event.target.value)}
        onKeyDown={(event) => {
          if (isComposing(event)) return;
          if (event.key === "Enter" && !event.shiftKey) {
            event.preventDefault();
            save();
          } else if (event.key === "Escape") {
            event.preventDefault();
            event.stopPropagation();
            cancel();
          }
        }}
      />
      <span className="ui-actions">
        <Button size="xs" variant="quiet" onClick={cancel}>
          Cancel
        </Button>
        <Button size="xs" variant="primary" disabled={text.trim() === ""} onClick={save}>
          Save
        </Button>
      </span>
    </>
  );
}
