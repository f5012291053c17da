import { ArrowDown, ArrowUp, ChevronUp, CornerDownRight, GripVertical, ListOrdered, Pencil, X } from "lucide-react";
import { type DragEvent, type KeyboardEvent, lazy, Suspense, useEffect, useRef, useState } from "react";
import type { QueuedMessage } from "@/chat-state/types";
import { Button, classes, Icon, IconButton, Tag } from "@/components";
import { useIsPhone } from "@/platform/media";
import { toastOnError } from "@/platform/toasts";
import { plural } from "@/platform/words";
import { fileCount, keepLateEdit, type QueueActions, textOf } from "./queue-actions";
import { isComposing } from "./text-box";

const ConfirmDialog = lazy(async () => ({ default: (await import("@/components/dialog")).ConfirmDialog }));

export interface Editing {
  readonly id: number;
  readonly text: string;
}

interface QueueListProps {
  queue: readonly QueuedMessage[];
  actions: QueueActions;
  isHeld: boolean;
  /** The chat works: the queue can be held. */
  isBusy: boolean;
  editing: Editing | null;
  onEditing: (editing: Editing | null) => void;
  /** Focus goes back to the text box. */
  onDone: () => void;
}

/** The messages that wait, on top of the text box: those that steer first, then by number. */
export function QueueList({ queue, actions, isHeld, isBusy, editing, onEditing, onDone }: QueueListProps) {
  const { shown, reorder } = useShownOrder(queue);
  const [dragged, setDragged] = useState<number | null>(null);
  const isPhone = useIsPhone();
  const [isFolded, setFolded] = useState(true);
  const [isClearing, setClearing] = useState(false);
  const lost = editing !== null && !queue.some((one) => one.id === editing.id) ? editing.text : null;
  useEffect(() => {
    if (lost === null) return;
    keepLateEdit(lost);
    onEditing(null);
  }, [lost, onEditing]);
  if (queue.length === 0) return null;
  const move = (id: number, before: number | null) => {
    reorder(moved(shown, id, before));
    toastOnError(
      actions.move(id, before).catch((error: unknown) => {
        reorder(null);
        throw error;
      }),
    );
  };
  const dropOn = (event: DragEvent, target: QueuedMessage) => {
    event.preventDefault();
    if (dragged !== null && dragged !== target.id) move(dragged, neighbour(shown, dragged, target.id));
    setDragged(null);
  };
  if (isPhone && isFolded && editing === null) {
    return <FoldedQueue queue={shown} isHeld={isHeld} onOpen={() => setFolded(false)} />;
  }
  const numbered = shown.filter((one) => one.steer !== true);
  return (
    <section className="composer-queue" aria-label="Queue">
      <header>
        <span>{isHeld ? "Held" : "Next up"}</span>
        <span className="tone-subtle ui-number">{queue.length}</span>
        <span className="ui-grow" />
        {isPhone && (
          <Button size="xs" variant="quiet" onClick={() => setFolded(true)}>
            Fold
          </Button>
        )}
        {isHeld ? (
          <Button size="xs" variant="quiet" onClick={() => toastOnError(actions.resume())}>
            Resume
          </Button>
        ) : (
          isBusy && (
            <Button size="xs" variant="quiet" onClick={() => toastOnError(actions.hold())} title="Stops the answer; the queue waits until you resume it">
              Hold
            </Button>
          )
        )}
        <Button size="xs" variant="quiet" onClick={() => setClearing(true)}>
          Clear
        </Button>
      </header>
      <ol>
        {shown.map((message) => (
          <QueueRow
            key={message.id}
            message={message}
            position={message.steer === true ? null : numbered.indexOf(message) + 1}
            canMoveUp={canMove(shown, message, -1)}
            canMoveDown={canMove(shown, message, 1)}
            editing={editing?.id === message.id ? editing.text : null}
            isDragged={dragged === message.id}
            actions={actions}
            onMove={(step) => move(message.id, stepTarget(shown, message.id, step))}
            onEdit={(text) => onEditing(text === null ? null : { id: message.id, text })}
            onDrag={setDragged}
            onDrop={(event) => dropOn(event, message)}
            onDone={onDone}
          />
        ))}
      </ol>
      {isClearing && (
        <Suspense>
          <ConfirmDialog
            open
            onOpenChange={setClearing}
            title={queue.length === 1 ? "Remove the queued message?" : `Remove ${queue.length} queued messages?`}
            description="They are not sent. This cannot be undone."
            action="Remove"
            onConfirm={() => actions.clear(queue)}
          />
        </Suspense>
      )}
    </section>
  );
}

/** Only among messages of the same kind: those that steer always come first. */
function canMove(shown: readonly QueuedMessage[], message: QueuedMessage, step: -1 | 1): boolean {
  const other = shown[shown.indexOf(message) + step];
  return other !== undefined && (other.steer === true) === (message.steer === true);
}

function stepTarget(shown: readonly QueuedMessage[], id: number, step: -1 | 1): number | null {
  const at = shown.findIndex((one) => one.id === id);
  return shown[step < 0 ? at - 1 : at + 2]?.id ?? null;
}

/** On a phone: one line that opens the queue. */
function FoldedQueue({ queue, isHeld, onOpen }: { queue: readonly QueuedMessage[]; isHeld: boolean; onOpen: () => void }) {
  const first = queue[0];
  return (
    <section className="composer-queue is-folded" aria-label="Queue">
      <button type="button" className="composer-queue-more" aria-expanded={false} onClick={onOpen}>
        <Icon of={ListOrdered} className="tone-muted" />
        {isHeld ? "Held" : "Next up"} {queue.length}
        <span className="ui-ellipsis ui-grow">{first === undefined ? "" : textOf(first)}</span>
        <Icon of={ChevronUp} />
      </button>
    </section>
  );
}

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

function QueueRow(props: QueueRowProps) {
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
      {editing === null ? <QueueRowText {...props} /> : <QueueRowEditor {...props} text={editing} />}
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

function QueueRowText({ message, canMoveUp, canMoveDown, actions, onMove, onEdit, onDone }: QueueRowProps) {
  const text = textOf(message);
  const files = fileCount(message);
  const name = text === "" ? `${files} files` : text.slice(0, 60);
  return (
    <>
      <span className="ui-ellipsis ui-grow" title={text}>
        {firstLine(text)}
      </span>
      {files > 0 && <span className="tone-subtle ui-countdown">{plural(files, "file")}</span>}
      {message.steer === true && <Tag tone="accent">Steers at the next step</Tag>}
      <span className="ui-actions">
        {canMoveUp && <IconButton icon={ArrowUp} size="sm" label="Move up" shortcut="Alt ↑" onClick={() => onMove(-1)} aria-description={name} />}
        {canMoveDown && <IconButton icon={ArrowDown} size="sm" label="Move down" shortcut="Alt ↓" onClick={() => onMove(1)} aria-description={name} />}
        <IconButton icon={Pencil} size="sm" label="Edit" onClick={() => onEdit(text)} aria-description={name} />
        <Button size="xs" onClick={() => toastOnError(actions.promote(message.id))} aria-description={name}>
          Send now
        </Button>
        <IconButton
          icon={X}
          size="sm"
          label="Remove"
          aria-description={name}
          onClick={() => {
            toastOnError(actions.remove(message.id));
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

function QueueRowEditor({ message, text, actions, onEdit, onDone }: QueueRowProps & { text: string }) {
  const isSaving = useRef(false);
  const save = () => {
    if (isSaving.current || text.trim() === "") return;
    isSaving.current = true;
    const isSame = text === textOf(message);
    onEdit(null);
    onDone();
    if (!isSame) toastOnError(actions.edit(message, text));
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

// The order of the queue on the screen: that of the server, or the user's until the server has it.

/** The messages with one of them before another; null: as the last. */
function moved(queue: readonly QueuedMessage[], id: number, before: number | null): readonly QueuedMessage[] {
  const message = queue.find((one) => one.id === id);
  if (message === undefined || id === before) return queue;
  const others = queue.filter((one) => one.id !== id);
  const at = before === null ? -1 : others.findIndex((one) => one.id === before);
  return at < 0 ? [...others, message] : [...others.slice(0, at), message, ...others.slice(at)];
}

/** Where a message that is dropped on another one goes: above it when it comes from below, else below. */
function neighbour(queue: readonly QueuedMessage[], id: number, target: number): number | null {
  const from = queue.findIndex((one) => one.id === id);
  const to = queue.findIndex((one) => one.id === target);
  return from > to ? target : (queue[to + 1]?.id ?? null);
}

function useShownOrder(queue: readonly QueuedMessage[]) {
  const [wanted, setWanted] = useState<{ readonly of: readonly QueuedMessage[]; readonly order: readonly QueuedMessage[] } | null>(null);
  const shown = wanted?.of === queue ? wanted.order : queue;
  const reorder = (order: readonly QueuedMessage[] | null) => setWanted(order === null ? null : { of: queue, order });
  return { shown, reorder };
}
