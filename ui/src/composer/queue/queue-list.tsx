import { ChevronUp, ListOrdered } from "lucide-react";
import { type DragEvent, useEffect, useState } from "react";
import type { QueuedMessage } from "@/chat-state";
import { Button, ConfirmDialog, Icon } from "@/components";
import { useIsPhone } from "@/platform/use-media";
import { tell } from "../tell";
import { keepLateEdit, type QueueActions, textOf } from "./queue-actions";
import { moved, neighbour, useShownOrder } from "./queue-order";
import { QueueRow } from "./queue-row";

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
    tell(actions.move(id, before).catch((error: unknown) => {
      reorder(null);
      throw error;
    }));
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
          <Button size="xs" variant="quiet" onClick={() => tell(actions.resume())}>
            Resume
          </Button>
        ) : (
          isBusy && (
            <Button size="xs" variant="quiet" onClick={() => tell(actions.hold())} title="Stops the answer; the queue waits until you resume it">
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
      <ConfirmDialog
        open={isClearing}
        onOpenChange={setClearing}
        title={queue.length === 1 ? "Remove the queued message?" : `Remove ${queue.length} queued messages?`}
        description="They are not sent. This cannot be undone."
        action="Remove"
        onConfirm={() => actions.clear(queue)}
      />
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
